"""A port whose connections are served on a thread of its own each."""

import logging
import socket
import threading
from collections.abc import Callable

CLOSE_SECONDS = 5.0
RETRY_SECONDS = 0.1

log = logging.getLogger(__name__)


class Listener:
    """Serves from the start; `serve` gets a connection and may let OSError fly."""

    def __init__(
        self, name: str, sock: socket.socket, serve: Callable[[socket.socket], None]
    ) -> None:
        self._sock = sock
        self._serve = serve
        self._name = name
        self._lock = threading.Lock()
        self._open: dict[socket.socket, threading.Thread] = {}
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._accept, name=f"{name}-accept", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Breaks off every connection; returns when their threads have ended."""
        if self._closed.is_set():
            return
        self._closed.set()
        # Closing alone does not wake a thread that sits in accept().
        shut(self._sock)
        self._thread.join(CLOSE_SECONDS)
        self._sock.close()
        with self._lock:
            threads = list(self._open.values())
            for connection in self._open:
                shut(connection)
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join(CLOSE_SECONDS)

    def _accept(self) -> None:
        while not self._closed.is_set():
            try:
                connection, _ = self._sock.accept()
            except OSError:
                # Out of descriptors, or a client that left at once; or we are closing.
                self._closed.wait(RETRY_SECONDS)
                continue
            thread = threading.Thread(
                target=self._run, args=(connection,), name=self._name, daemon=True
            )
            with self._lock:
                self._open[connection] = thread
            try:
                thread.start()
            except RuntimeError as error:
                # No room for another thread: this peer is turned away, the others stay.
                log.error("%s: %s", self._name, error)
                with self._lock:
                    del self._open[connection]
                connection.close()

    def _run(self, connection: socket.socket) -> None:
        try:
            if not self._closed.is_set():
                self._serve(connection)
        except OSError as error:
            log.debug("%s: a peer broke off: %s", self._name, error)
        # One bad connection must not end silently, nor end anything else.
        except Exception:
            log.exception("%s: a connection broke", self._name)
        finally:
            with self._lock:
                self._open.pop(connection, None)
            connection.close()


def shut(sock: socket.socket) -> None:
    """Wakes a thread that blocks on this socket; harmless on one that is not connected."""
    try:
        sock.shutdown(socket.SHUT_RDWR)
    except OSError:
        return
