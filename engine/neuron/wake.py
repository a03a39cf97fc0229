"""A wake-up, from any other thread, for a thread that polls sockets."""

import socket


class Wake:
    """Poll `fileno` for reading; `clear` before looking what there is to do."""

    def __init__(self) -> None:
        self._read, self._write = socket.socketpair()
        self._read.setblocking(False)
        self._write.setblocking(False)

    def fileno(self) -> int:
        return self._read.fileno()

    def __call__(self) -> None:
        try:
            self._write.send(b"!")
        except BlockingIOError:
            # Full of earlier calls, so the thread wakes in any case.
            return
        except OSError:
            # Closed: the thread has ended, and with it what it was to be told.
            return

    def clear(self) -> None:
        try:
            while self._read.recv(4096):
                pass
        except BlockingIOError:
            return

    def close(self) -> None:
        self._read.close()
        self._write.close()
