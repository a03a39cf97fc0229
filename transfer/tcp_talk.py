"""The peer's side of tcp: a request to an owner, and a transfer that is shared by several."""

import socket
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, wait
from dataclasses import dataclass

from pdgate.transfer import tcp_wire as wire
from pdgate.transfer.base import (
    Corrupted,
    OutOfBounds,
    PeerLost,
    StaleDescriptor,
    TransferError,
)
from pdgate.transfer.library import Op
from pdgate.transfer.ranges import Piece
from pdgate.transfer.running import Interrupted, Running
from pdgate.transfer.tcp_links import Address, InUse, Links

BEGIN_BYTES = 256 << 10
"""Sent on the caller's thread: enough to keep the peer busy until a thread of ours is up."""

_REFUSALS: dict[wire.Status, Callable[[str], TransferError]] = {
    wire.Status.STALE: StaleDescriptor,
    wire.Status.OUT_OF_BOUNDS: OutOfBounds,
    wire.Status.BAD_REQUEST: TransferError,
    wire.Status.CORRUPT: Corrupted,
}

_OPS = {Op.READ: wire.Op.READ, Op.WRITE: wire.Op.WRITE}


@dataclass(frozen=True, slots=True)
class Talk:
    """What the requests of one transfer have in common."""

    links: Links
    address: Address
    op: Op
    epoch: bytes
    memory: memoryview
    checked: bool
    in_use: InUse

    def request(self, pieces: Sequence[Piece], immediate: int | None) -> "Exchange":
        asked = wire.Request(
            _OPS[self.op],
            self.epoch,
            [remote for _, remote, _ in pieces],
            [length for _, _, length in pieces],
            immediate,
            self.checked,
        )
        memory = self.memory
        return Exchange(self, asked, [memory[local : local + n] for local, _, n in pieces])


class Exchange:
    """One request on one connection, and the answer to it."""

    def __init__(self, talk: Talk, request: wire.Request, views: Sequence[memoryview]) -> None:
        self._talk = talk
        self._request = request
        self._views = views
        self._sock: socket.socket | None = None
        self._unsent: Sequence[wire.View] | None = None

    def begin(self, transfer: Running) -> None:
        """As much as can be said without waiting, on a connection that is there."""
        talk = self._talk
        # Checksums take their time.
        if talk.checked or (sock := talk.links.idle(talk.address)) is None:
            return
        self._sock = sock
        talk.in_use.add(sock)
        transfer.on_interrupt(talk.in_use.interrupt)
        said = self._said()
        try:
            self._unsent = wire.send_some(sock, said, BEGIN_BYTES)
        except OSError:
            # It is lost, which sending the same again will tell.
            self._unsent = said

    def finish(self, transfer: Running) -> None:
        """Raises TransferError, Interrupted."""
        talk, what = self._talk, transfer.what
        try:
            sock = self._sock or talk.links.take(talk.address)
        except OSError as error:
            raise PeerLost(f"{what}: {error}") from None
        try:
            talk.in_use.add(sock)
            transfer.on_interrupt(talk.in_use.interrupt)
            status = self._converse(sock)
        except OSError as error:
            sock.close()
            if transfer.over:
                raise Interrupted from None
            raise PeerLost(f"{what}: {error}") from None
        except wire.BadRequest:
            sock.close()
            raise TransferError(f"{what}: the peer speaks something else") from None
        except BaseException:
            sock.close()
            raise
        finally:
            talk.in_use.discard(sock)
        talk.links.give_back(talk.address, sock)
        if status is not wire.Status.OK:
            raise _REFUSALS[status](f"{what}: {status.name.lower().replace('_', ' ')}")

    def _said(self) -> Sequence[wire.View]:
        """A write is sent without asking whether it is welcome: that would take a round trip."""
        head = wire.encode(self._request)
        if self._request.op is wire.Op.READ:
            return [head]
        trailer = [wire.checksum(self._views)] if self._request.checked else []
        return [head, *self._views, *trailer]

    def _converse(self, sock: socket.socket) -> wire.Status:
        checked = self._request.checked
        wire.send_views(sock, self._said() if self._unsent is None else self._unsent)
        status = wire.receive_answer(sock, checked=checked)
        if self._request.op is wire.Op.READ and status is wire.Status.OK:
            try:
                wire.receive_bytes(sock, self._views, checked=checked)
            except wire.Corrupt:
                return wire.Status.CORRUPT
        return status


def move_together(
    transfer: Running,
    talk: Talk,
    shares: Sequence[Sequence[Piece]],
    immediate: int | None,
    threads: Executor,
) -> None:
    """A share on each connection; returns when none of them moves any more.

    A counted write ends with a request that moves nothing: all shares have landed then.
    Raises TransferError, Interrupted.
    """

    errors: list[BaseException] = []

    def move(share: Sequence[Piece]) -> None:
        try:
            talk.request(share, None).finish(transfer)
        # Whatever it is, it is raised below; the others move in vain, and fail because of it.
        except BaseException as error:  # noqa: BLE001
            errors.append(error)
            talk.in_use.interrupt()

    others = [threads.submit(move, share) for share in shares[1:]]
    move(shares[0])
    wait(others)
    if errors:
        raise errors[0]
    if immediate is not None:
        talk.request([], immediate).finish(transfer)
