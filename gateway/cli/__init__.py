"""The gateway's commands."""
