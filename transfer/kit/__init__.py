"""The former name of `transfer.runtime`, of which backends of others import `op`; it goes with 0.3."""
