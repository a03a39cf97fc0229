"""Ports of the loopback interface."""

import socket


def free_port() -> int:
    """Free a moment ago: another process may take it before we do."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])
