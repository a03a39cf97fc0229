"""TLS with certificates of both ends, around connections that then are used like any other.

    our code -- socket pair -- pump (a thread) -- TLS -- peer's pump -- socket pair -- its code

The bytes go through a thread of each side, because an SSL object is for one thread at a time and
knows neither gathered writes nor reads into many pages. That costs most of the throughput.

What ends one end ends the other: a peer's end of sending, too, which TLS itself has no word for.
"""

import logging
import select
import socket
import ssl
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeVar

from pdgate.transfer.runtime.listener import shut

CHUNK_BYTES: Final = 256 << 10

T = TypeVar("T")

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Tls:
    """Files (PEM).

    Attributes:
        cert, key: Of this engine.
        ca: The authorities that vouch for the fleet's engines, and for no others.
    """

    cert: str = ""
    key: str = ""
    ca: str = ""

    @property
    def named(self) -> bool:
        """Whether there is to be TLS."""
        return bool(self.cert or self.key or self.ca)

    def check(self) -> None:
        """Raises ValueError."""
        for name, path in (
            ("certificate", self.cert),
            ("key", self.key),
            ("list of authorities", self.ca),
        ):
            if not path:
                raise ValueError(f"TLS between engines takes three files; the {name} is missing")
        try:
            self._context(ssl.PROTOCOL_TLS_SERVER)
        except ssl.SSLError as error:
            files = f"{self.cert}, {self.key}, {self.ca}"
            raise ValueError(f"TLS between engines: {files}: {error}") from None
        except OSError as error:
            raise ValueError(f"TLS between engines: cannot read a file: {error.strerror}") from None

    def around(self, sock: socket.socket, until: float, *, server: bool) -> socket.socket:
        """What to use instead. `sock` stays the caller's: shut down, it ends all of it.

        `until` is of time.monotonic(), for TLS's handshake. Raises OSError.
        """
        context = self._context(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
        own = sock.dup()
        own.settimeout(max(0.001, until - time.monotonic()))
        try:
            wrapped = context.wrap_socket(own, server_side=server)
        except BaseException:
            own.close()
            raise
        wrapped.setblocking(False)
        inner, outer = socket.socketpair()
        outer.setblocking(False)
        pump = _Pump(wrapped, outer)
        threading.Thread(target=pump.run, name="pdgate-tls", daemon=True).start()
        return inner

    def _context(self, kind: int) -> ssl.SSLContext:
        """Made for each connection, so that renewed files count."""
        context = ssl.SSLContext(kind)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        # A fleet's engines are who its authority says; their names and addresses come and go.
        context.check_hostname = False
        context.verify_mode = ssl.CERT_REQUIRED
        # A peer that sends no more may still read; frames say by themselves where they end.
        context.options |= ssl.OP_IGNORE_UNEXPECTED_EOF
        context.load_cert_chain(self.cert, self.key)
        context.load_verify_locations(self.ca)
        return context


NO_TLS: Final = Tls()


class _Way:
    """One direction: what has been read and not been written.

    Attributes:
        ended: Nothing more comes.
        closed: And the other side has been told.
    """

    def __init__(self) -> None:
        self.data = memoryview(b"")
        self.ended = False
        self.closed = False


class _Pump:
    """One thread, which alone touches the SSL object."""

    def __init__(self, tls: ssl.SSLSocket, plain: socket.socket) -> None:
        self._tls = tls
        self._plain = plain
        self._out = _Way()
        self._back = _Way()
        self._tls_wants_write = False

    def run(self) -> None:
        try:
            while not (self._out.closed and self._back.closed):
                self._wait()
                self._step(self._plain, self._tls, self._out)
                self._step(self._tls, self._plain, self._back)
        except OSError as error:
            log.debug("a TLS connection between engines broke: %s", error)
        finally:
            shut(self._tls)
            self._tls.close()
            shut(self._plain)
            self._plain.close()

    def _step(self, source: socket.socket, sink: socket.socket, way: _Way) -> None:
        """As far as it goes without waiting. Raises OSError."""
        while not way.closed:
            if way.data:
                sent = _tried(lambda: sink.send(way.data))
                if sent is None:
                    return
                way.data = way.data[sent:]
            elif way.ended:
                way.closed = True
                _end_sending(sink)
            else:
                data = _tried(lambda: source.recv(CHUNK_BYTES))
                if data is None:
                    return
                way.data, way.ended = memoryview(data), not data

    def _wait(self) -> None:
        """Until something may go on."""
        if self._tls.pending() and not self._back.data and not self._back.ended:
            return
        watch = select.poll()
        tls = plain = 0
        for way, source_is_tls in ((self._out, False), (self._back, True)):
            if way.closed:
                continue
            reads = not way.data and not way.ended
            if source_is_tls == reads:
                tls |= select.POLLIN if reads else select.POLLOUT
            else:
                plain |= select.POLLIN if reads else select.POLLOUT
        if tls:
            watch.register(self._tls, tls)
        if plain:
            watch.register(self._plain, plain)
        watch.poll()


def _tried(do: Callable[[], T]) -> T | None:
    """What it returns; None if it would have to wait."""
    try:
        return do()
    except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
        return None


def _end_sending(sink: socket.socket) -> None:
    """The socket alone: TLS has no end of one direction."""
    try:
        socket.socket.shutdown(sink, socket.SHUT_WR)
    except OSError:
        return
