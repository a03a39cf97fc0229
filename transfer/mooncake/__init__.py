"""Through Mooncake's transfer engine."""
