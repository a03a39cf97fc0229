"""Ports of the loopback interface, for servers that cannot say which one they took."""

import random
import socket

LOOPBACK = "127.0.0.1"
# Below those that Linux gives to outgoing connections, and above those from 15000 on of which
# Mooncake's engine takes two by chance: either would take ours away again.
RANGE = range(17_000, 32_000)

_given: set[int] = set()
"""To servers that may not have got as far as to listen."""


def free_port(neighbours: int = 0) -> int:
    """A port that no server has, and none was given before, and as many such ones after it."""
    while True:
        port = random.choice(RANGE)
        ports = range(port, port + neighbours + 1)
        if _given.isdisjoint(ports) and all(map(_is_free, ports)):
            _given.update(ports)
            return port


def _is_free(port: int) -> bool:
    try:
        socket.create_server((LOOPBACK, port)).close()
    except OSError:
        return False
    return True
