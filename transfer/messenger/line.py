"""P's end of a connection, for threads that must not wait for D to read."""

import socket
import threading

from pdgate.transfer.messenger import messages


class Line:
    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._lock = threading.Lock()

    def fileno(self) -> int:
        return self._sock.fileno()

    def receive(self, seconds: float | None) -> messages.Message | None:
        """None when the peer hung up or `say` gave it up. Raises BadMessage, OSError."""
        self._sock.settimeout(seconds)
        return messages.receive(self._sock)

    def say(self, message: messages.Message) -> None:
        """Never blocks: a peer that lets its answers pile up has lost its connection."""
        data = messages.frame(message)
        with self._lock:
            try:
                sent = self._sock.send(data, socket.MSG_DONTWAIT)
            except OSError:
                sent = 0
            if sent < len(data):
                self._give_up()

    def _give_up(self) -> None:
        """Ends our reading only: the peer may see the end when nothing can land any more."""
        try:
            self._sock.shutdown(socket.SHUT_RD)
        except OSError:
            return
