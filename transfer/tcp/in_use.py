"""What one transfer holds open."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from pdgate.transfer.kit.listener import shut
from pdgate.transfer.kit.running import Interrupted


class InUse:
    """The connections of one transfer, which end together if it is interrupted."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._socks: set[socket.socket] = set()
        self._interrupted = False

    @contextmanager
    def using(self, sock: socket.socket) -> Iterator[None]:
        """Raises Interrupted."""
        with self._lock:
            if self._interrupted:
                raise Interrupted
            self._socks.add(sock)
        try:
            yield
        finally:
            with self._lock:
                self._socks.discard(sock)

    def interrupt(self) -> None:
        with self._lock:
            self._interrupted = True
            for sock in self._socks:
                shut(sock)
