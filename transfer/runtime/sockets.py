"""Messages and pages over a blocking socket: whole, in few calls, and without a copy."""

import select
import socket
import time
from collections import deque
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Final, TypeVar

MAX_VIEWS_PER_CALL: Final = 1024
"""IOV_MAX of Linux."""

View = memoryview | bytes
V = TypeVar("V", memoryview, bytes, View)


def receive(sock: socket.socket, length: int, until: float | None = None) -> bytes:
    """So many bytes; for messages, not for pages.

    `until`, of time.monotonic(), is for all of them, however they are spread; without it the socket's timeout is for
    each piece. Raises OSError, of which TimeoutError.
    """
    if not length:
        return b""
    if until is not None:
        _limit(sock, until)
    return _rest(sock, sock.recv(length, socket.MSG_WAITALL), length, until)


def receive_first(sock: socket.socket, length: int, until: float | None = None) -> bytes:
    """However long it takes until they begin, if not `until`; empty if the peer hung up before. Raises OSError."""
    while True:
        if until is not None:
            _limit(sock, until)
        try:
            begun = sock.recv(length, socket.MSG_WAITALL)
        except BlockingIOError:
            # The kernel's own time limit of the socket: nothing was asked meanwhile.
            continue
        return _rest(sock, begun, length, until) if begun else b""


def receive_views(sock: socket.socket, views: Iterable[memoryview]) -> None:
    """Fills the views in order, straight from the socket. Raises OSError.

    Many in one call: a call for each page would wake us up for each page.
    """
    left = deque(view for view in views if view)
    while left:
        batch = list(islice(left, MAX_VIEWS_PER_CALL))
        got = sock.recvmsg_into(batch, 0, socket.MSG_WAITALL)[0]
        if got == 0:
            raise ConnectionResetError("the peer hung up in the middle")
        _pass(left, got)


def send_views(sock: socket.socket, views: Iterable[View]) -> None:
    """Sends the views in order, without joining them. Raises OSError."""
    left = deque(view for view in views if view)
    while left:
        _pass(left, sock.sendmsg(list(islice(left, MAX_VIEWS_PER_CALL))))


def hung_up(sock: socket.socket) -> bool:
    """For a connection on which the peer has nothing to say: any event is its end."""
    return bool(all_hung_up([sock]))


def all_hung_up(socks: Sequence[socket.socket]) -> list[socket.socket]:
    """Which of these connections have been, with one call for all of them."""
    watch = select.poll()
    for sock in socks:
        watch.register(sock, select.POLLIN | select.POLLRDHUP)
    ended = {found for found, _ in watch.poll(0)}
    return [sock for sock in socks if sock.fileno() in ended]


def gone(sock: socket.socket) -> bool:
    """Whether the peer has hung up, of one that may still have something to say."""
    watch = select.poll()
    watch.register(sock, select.POLLRDHUP)
    return bool(watch.poll(0))


def _pass(left: deque[V], count: int) -> None:
    """So many bytes of the views are done."""
    while count:
        view = left.popleft()
        if count < len(view):
            left.appendleft(view[count:])
            return
        count -= len(view)


def _limit(sock: socket.socket, until: float) -> None:
    """Raises TimeoutError."""
    left = until - time.monotonic()
    if left <= 0:
        raise TimeoutError("timed out")
    sock.settimeout(left)


def _rest(sock: socket.socket, begun: bytes, length: int, until: float | None) -> bytes:
    """A signal or the time limit may cut a read short. Raises OSError."""
    while len(begun) < length:
        if until is not None:
            _limit(sock, until)
        more = sock.recv(length - len(begun), socket.MSG_WAITALL)
        if not more:
            raise ConnectionResetError("the peer hung up in the middle")
        begun += more
    return begun
