"""The peer's side of tcp: requests to an owner, on one connection or on several at once.

one         request -> answer
several     a share of the bytes on each, and then, if the write is counted, one more
            request that moves nothing: it counts when all shares have landed
"""

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

    def move(self, transfer: Running, pieces: Sequence[Piece], immediate: int | None) -> None:
        """On one connection. Raises TransferError, Interrupted."""
        in_use = InUse()
        transfer.on_interrupt(in_use.interrupt)
        self._move(transfer, in_use, pieces, immediate)

    def move_together(
        self,
        transfer: Running,
        shares: Sequence[Sequence[Piece]],
        immediate: int | None,
        threads: Executor,
    ) -> None:
        """Returns when no share moves any more. Raises as `move`."""
        in_use = InUse()
        transfer.on_interrupt(in_use.interrupt)

        def move(share: Sequence[Piece]) -> None:
            try:
                self._move(transfer, in_use, share, None)
            except BaseException:
                # The others move in vain.
                in_use.interrupt()
                raise

        others = [threads.submit(move, share) for share in shares[1:]]
        try:
            move(shares[0])
        finally:
            wait(others)
        for other in others:
            other.result()
        if immediate is not None:
            self._move(transfer, in_use, [], immediate)

    def _move(
        self,
        transfer: Running,
        in_use: InUse,
        pieces: Sequence[Piece],
        immediate: int | None,
    ) -> None:
        what, memory = transfer.what, self.memory
        request = wire.Request(
            _OPS[self.op],
            self.epoch,
            [remote for _, remote, _ in pieces],
            [length for _, _, length in pieces],
            immediate,
            self.checked,
        )
        views = [memory[local : local + length] for local, _, length in pieces]
        try:
            sock = self.links.take(self.address)
        except OSError as error:
            raise PeerLost(f"{what}: {error}") from None
        try:
            with in_use.using(sock):
                status = _ask(sock, request, views)
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
        self.links.give_back(self.address, sock)
        if status is not wire.Status.OK:
            raise _REFUSALS[status](f"{what}: {status.name.lower().replace('_', ' ')}")


def _ask(sock: socket.socket, request: wire.Request, views: Sequence[memoryview]) -> wire.Status:
    head, checked = wire.encode(request), request.checked
    if request.op is wire.Op.WRITE:
        # All at once, without asking whether it is welcome: that would cost a round trip.
        trailer = [wire.checksum(views)] if checked else []
        wire.send_views(sock, [head, *views, *trailer])
        return wire.receive_answer(sock, checked=checked)
    sock.sendall(head)
    status = wire.receive_answer(sock, checked=checked)
    if status is wire.Status.OK:
        try:
            wire.receive_bytes(sock, views, checked=checked)
        except wire.Corrupt:
            return wire.Status.CORRUPT
    return status
