"""Commands for who runs a fleet: looks at it, asks it, checks it. They speak HTTP to gateways and engines."""
