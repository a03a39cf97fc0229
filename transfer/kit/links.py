"""Connections to owners, kept for the next transfer."""

import socket
import threading

from pdgate.transfer.kit.sockets import hung_up

Address = tuple[str, int]

CONNECT_SECONDS = 5.0
MAX_IDLE_PER_PEER = 8


class Links:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: dict[Address, list[socket.socket]] = {}
        self._closed = False

    def take(self, address: Address) -> socket.socket:
        """An idle connection that is still up, or a new one. Raises OSError."""
        while sock := self._pop(address):
            if not hung_up(sock):
                return sock
            sock.close()
        sock = socket.create_connection(address, timeout=CONNECT_SECONDS)
        # Blocking from here on: whoever wants to stop a transfer shuts its socket down.
        sock.settimeout(None)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return sock

    def give_back(self, address: Address, sock: socket.socket) -> None:
        with self._lock:
            idle = self._idle.setdefault(address, [])
            if not self._closed and len(idle) < MAX_IDLE_PER_PEER:
                idle.append(sock)
                return
        sock.close()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            left = [sock for socks in self._idle.values() for sock in socks]
            self._idle.clear()
        for sock in left:
            sock.close()

    def _pop(self, address: Address) -> socket.socket | None:
        with self._lock:
            idle = self._idle.get(address)
            return idle.pop() if idle else None
