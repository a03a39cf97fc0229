"""Through a NIXL agent."""
