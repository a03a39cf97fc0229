"""Ports of the loopback interface, for servers that cannot say which one they took."""

import random
import socket

LOOPBACK = "127.0.0.1"
# Below those that Linux gives to outgoing connections, which would take ours away again.
RANGE = range(15_000, 32_000)


def free_port(neighbours: int = 0) -> int:
    """A port that nobody listens on now, and as many free ones after it."""
    while True:
        port = random.choice(RANGE)
        if all(_is_free(port + offset) for offset in range(neighbours + 1)):
            return port


def _is_free(port: int) -> bool:
    try:
        socket.create_server((LOOPBACK, port)).close()
    except OSError:
        return False
    return True
