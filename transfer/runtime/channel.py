"""Connections between engines whose both ends have proven themselves (handshake.py).

`dial` makes one; a `Door` stands before a listener's `serve` and lets in who has proven itself.
Strangers cost little: they are few at a time, say little, and are gone soon.
"""

import contextlib
import errno
import logging
import os
import select
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Final, Self

from pdgate.transfer.runtime import handshake
from pdgate.transfer.runtime.fleet import Identity, loopback
from pdgate.transfer.runtime.handshake import Answering, Dialling, Session, Unproven
from pdgate.transfer.runtime.listener import shut
from pdgate.transfer.runtime.refusals import DIALLED, Reason
from pdgate.transfer.runtime.strangers import Strangers, receive

HANDSHAKE_SECONDS: Final = 5.0
"""For all of it, however it is spread."""
FAREWELL_SECONDS: Final = 1.0
MAX_UNREAD_BYTES: Final = 1 << 20
KEEPALIVE: Final = {"TCP_KEEPIDLE": 600, "TCP_KEEPINTVL": 60, "TCP_KEEPCNT": 10}
"""A host that is gone is missed after 20 minutes: seconds, seconds, times. Linux alone would take more than two hours
(tcp(7): 7200, 75, 9). Not sooner: of a host that only cannot be reached, bytes that a library of transfers has sent may
still land until its kernel gives them up, after about 15 minutes (tcp_retries2), in pages that others have by then.
"""
LOG_SECONDS: Final = 10.0
"""Between two lines about strangers."""

log = logging.getLogger(__name__)

Serve = Callable[["Channel"], None]
Watch = Callable[[socket.socket], None]
_Address = tuple[
    socket.AddressFamily,
    socket.SocketKind,
    int,
    str,
    tuple[str, int] | tuple[str, int, int, int] | tuple[int, bytes],
]


class Channel:
    """A connection with a proven peer: frames have a MAC, bulk bytes beside them have none.

    Attributes:
        sock: To speak and to read on.
        wire: What goes to the other host: the same, or what TLS is spoken on.
        peer: Name of the peer's process, in hex.
    """

    def __init__(
        self, sock: socket.socket, session: Session, wire: socket.socket | None = None
    ) -> None:
        self.sock = sock
        self.wire = wire or sock
        self.peer = session.peer
        self.purpose = session.purpose
        self._outgoing = session.outgoing
        self._incoming = session.incoming

    def sealed(self, data: bytes) -> bytes:
        """With its MAC behind it. To be sent in this order, so by one thread at a time."""
        return data + self._outgoing.mac(data)

    def check(self, data: bytes, mac: bytes) -> None:
        """Raises Unproven."""
        self._incoming.check(data, mac)

    def close(self) -> None:
        self.sock.close()
        if self.wire is not self.sock:
            shut(self.wire)
            self.wire.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.close()


def dial(
    address: tuple[str, int],
    identity: Identity,
    purpose: str,
    seconds: float,
    *,
    peer: str = "",
    watch: Watch | None = None,
) -> Channel:
    """Connected and proven within so many seconds; blocking without a limit afterwards.

    `peer`: who has to answer, if that is known. `watch` gets the socket while it connects, one for each address
    of the host that is tried and one before while a name is looked up, and may shut it down from elsewhere. Raises OSError, of which Unproven.
    """
    try:
        return _dialled(address, identity, purpose, seconds, peer, watch)
    except Unproven as error:
        identity.refusals.add(DIALLED, error.why)
        raise


def _dialled(
    address: tuple[str, int],
    identity: Identity,
    purpose: str,
    seconds: float,
    peer: str,
    watch: Watch | None,
) -> Channel:
    until = time.monotonic() + seconds
    host, port = address
    if identity.is_open and not loopback(host):
        raise Unproven(f"{host} is not loopback, and we have no KV secret", Reason.SECRET)
    sock = connected(address, until, watch)
    try:
        _set_up(sock)
        inner = sock if identity.tls is None else identity.tls.around(sock, until, server=False)
        try:
            session = _introduced(inner, Dialling(identity, purpose), until)
            if peer not in ("", session.peer):
                raise Unproven(f"another engine than was meant answers at {host}:{port}")
            inner.settimeout(None)
        except BaseException:
            inner.close()
            raise
    except BaseException:
        shut(sock)
        sock.close()
        raise
    return Channel(inner, session, sock)


def connected(address: tuple[str, int], until: float, watch: Watch | None = None) -> socket.socket:
    """As socket.create_connection does, which says nothing of its socket before it is connected. Proven is nothing yet.

    Raises OSError.
    """
    failed = OSError(f"{address[0]!r} has no address")
    for family, kind, protocol, _, where in _addresses(address, until, watch):
        sock = socket.socket(family, kind, protocol)
        try:
            sock.setblocking(False)
            status = sock.connect_ex(where)
            # Only now: what is shut down before it begins to connect would connect all the same.
            if watch is not None:
                watch(sock)
            if status == errno.EINPROGRESS:
                status = _status(sock, until)
            if status:
                raise OSError(status, os.strerror(status))
            sock.settimeout(max(0.001, until - time.monotonic()))
        except OSError as error:
            sock.close()
            failed = error
        except BaseException:
            sock.close()
            raise
        else:
            return sock
    raise failed


def _addresses(address: tuple[str, int], until: float, watch: Watch | None) -> Sequence[_Address]:
    """Raises OSError."""
    if _numeric(address[0]):
        return socket.getaddrinfo(*address, type=socket.SOCK_STREAM)
    found: list[Sequence[_Address] | OSError] = []
    ours, its = socket.socketpair()

    def look_up() -> None:
        # Its end tells that there is an answer.
        with its:
            try:
                found.append(socket.getaddrinfo(*address, type=socket.SOCK_STREAM))
            except OSError as error:
                found.append(error)
            # A host name that IDNA cannot encode; it may be whatever stood in a store.
            except ValueError as error:
                found.append(OSError(f"{address[0]!r} is not a host: {error}"))

    with ours:
        try:
            # A resolver cannot be woken, and waits for as long as its servers are silent.
            threading.Thread(target=look_up, name="pdgate-name", daemon=True).start()
        except RuntimeError as error:
            its.close()
            raise OSError(f"no thread to look up {address[0]!r}: {error}") from None
        if watch is not None:
            watch(ours)
        ended = select.poll()
        ended.register(ours, select.POLLIN)
        if not ended.poll(max(0.0, until - time.monotonic()) * 1000):
            raise TimeoutError(f"timed out: no answer for the name {address[0]!r}")
    if not found:
        raise ConnectionAbortedError(f"given up while {address[0]!r} was looked up")
    if isinstance(found[0], OSError):
        raise found[0]
    return found[0]


def _numeric(host: str) -> bool:
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            socket.inet_pton(family, host)
        except (OSError, ValueError):
            continue
        return True
    return False


def _status(sock: socket.socket, until: float) -> int:
    """What became of it. Raises TimeoutError."""
    ready = select.poll()
    ready.register(sock, select.POLLOUT)
    if not ready.poll(max(0.0, until - time.monotonic()) * 1000):
        raise TimeoutError("timed out")
    return sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)


def _set_up(sock: socket.socket) -> None:
    """Either end. A peer whose host is gone says nothing: who waits for its word, with nothing of
    its own on the way, would wait for ever, and a load's blocks with it.
    """
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in KEEPALIVE.items():
        # Not every system has all of them.
        if (option := getattr(socket, name, None)) is not None:
            sock.setsockopt(socket.IPPROTO_TCP, option, value)


class Door:
    """Before a listener: serves those who have proven themselves, each by what it came for."""

    def __init__(
        self,
        name: str,
        identity: Identity,
        rooms: Mapping[str, Serve],
        older: Callable[[bytes], bytes] | None = None,
    ) -> None:
        """`rooms`: purpose -> who serves it. `older`: what to say to a peer that begins with other
        bytes than a HELLO, in words that it may know.
        """
        self._name = name
        self._identity = identity
        self._rooms = rooms
        self._older = older
        self._strangers = Strangers()
        self._lock = threading.Lock()
        self._quiet_until = 0.0
        self._unsaid = 0

    def __call__(self, sock: socket.socket) -> None:
        """One connection. Raises OSError."""
        try:
            with self._strangers.one_more(sock):
                channel = self._let_in(sock)
        except OSError as error:
            self._refused(error)
            return
        try:
            self._rooms[channel.purpose](channel)
        finally:
            if channel.sock is not sock:
                channel.close()

    def _let_in(self, sock: socket.socket) -> Channel:
        """Raises OSError."""
        until = time.monotonic() + HANDSHAKE_SECONDS
        _set_up(sock)
        tls = self._identity.tls
        inner = sock if tls is None else tls.around(sock, until, server=True)
        try:
            session = self._met(inner, until)
            inner.settimeout(None)
        except BaseException:
            if inner is not sock:
                inner.close()
            raise
        return Channel(inner, session, sock)

    def _met(self, sock: socket.socket, until: float) -> Session:
        """Raises OSError."""
        head = _received(sock, handshake.HEAD_BYTES, until)
        if head[:4] != handshake.MAGIC:
            _farewell(sock, self._older(head) if self._older is not None else b"")
            raise Unproven(f"it begins with {head!r} and no KV handshake", Reason.VERSION)
        hello = head
        if head[4] == handshake.VERSION:
            hello += _received(sock, handshake.HELLO_BYTES - len(head), until)
        meeting = Answering(self._identity, self._rooms, hello)
        if meeting.refusal:
            _farewell(sock, meeting.answer)
            raise Unproven(meeting.refusal, meeting.why)
        sock.sendall(meeting.answer)
        return meeting.proven(_received(sock, handshake.PROOF_BYTES, until))

    def _refused(self, error: OSError) -> None:
        why = error.why if isinstance(error, Unproven) else Reason.BROKEN
        self._identity.refusals.add(self._name, why)
        with self._lock:
            self._unsaid += 1
            if time.monotonic() < self._quiet_until:
                return
            count, self._unsaid = self._unsaid, 0
            self._quiet_until = time.monotonic() + LOG_SECONDS
        log.warning(
            "the KV port %s: %d connection(s) not let in; the last: %s", self._name, count, error
        )


def _introduced(sock: socket.socket, dialling: Dialling, until: float) -> Session:
    """Raises OSError."""
    sock.sendall(dialling.hello)
    try:
        head = _received(sock, handshake.VERDICT_BYTES, until)
    except ConnectionError:
        raise ConnectionResetError(
            "the peer hung up at the KV handshake: it has ended, or knows none (ours is version "
            f"{handshake.VERSION})"
        ) from None
    dialling.judge(head)
    answer = head + _received(sock, handshake.ANSWER_BYTES - len(head), until)
    proof, session = dialling.answered(answer)
    sock.sendall(proof)
    return session


def _received(sock: socket.socket, length: int, until: float) -> bytes:
    """Raises OSError."""
    data = b""
    while len(data) < length:
        try:
            piece = receive(sock, length - len(data), until)
        except TimeoutError:
            raise TimeoutError("the KV handshake took too long") from None
        if not piece:
            raise ConnectionResetError("it hung up at the KV handshake")
        data += piece
    return data


def _farewell(sock: socket.socket, said: bytes) -> None:
    """Says it and waits for the end: what is left unread would take it back."""
    # Whether it hears us or hangs up, why it is refused is the same.
    with contextlib.suppress(OSError):
        _say_and_wait(sock, said)


def _say_and_wait(sock: socket.socket, said: bytes) -> None:
    until = time.monotonic() + FAREWELL_SECONDS
    sock.settimeout(FAREWELL_SECONDS)
    sock.sendall(said)
    sock.shutdown(socket.SHUT_WR)
    unread = 0
    while unread < MAX_UNREAD_BYTES and (left := until - time.monotonic()) > 0:
        sock.settimeout(left)
        piece = sock.recv(1 << 16)
        if not piece:
            return
        unread += len(piece)
