"""Operators' commands: they look at a fleet, ask and check it, by HTTP to gateways and engines."""
