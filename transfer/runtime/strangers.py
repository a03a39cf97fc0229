"""Connections whose other end has not proven itself: few at a time, and none for long."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from pdgate.transfer.runtime.listener import shut

MOST: Final = 128
"""What a flood leaves to those who mean well is the time until so many more have come."""


class Strangers:
    """Of one listener. Where there are too many, the one that has been there for longest goes."""

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._there: dict[socket.socket, None] = {}

    @contextmanager
    def one_more(self, sock: socket.socket) -> Iterator[None]:
        """For the block it is a stranger's, and may be shut down."""
        with self._lock:
            if len(self._there) >= self._most:
                oldest = next(iter(self._there))
                del self._there[oldest]
                shut(oldest)
            self._there[sock] = None
        try:
            yield
        finally:
            with self._lock:
                self._there.pop(sock, None)


def receive(sock: socket.socket, most: int, until: float) -> bytes:
    """What is there, up to so many bytes; empty at the end.

    `until`, of time.monotonic(), is for all that a stranger says, however it spreads it. Raises
    TimeoutError, OSError.
    """
    left = until - time.monotonic()
    if left <= 0:
        raise TimeoutError("a stranger took too long")
    sock.settimeout(left)
    return sock.recv(most)
