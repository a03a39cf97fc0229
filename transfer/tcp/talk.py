"""The peer's side of tcp: a request to an owner, and a transfer that is shared by several."""

import socket
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, wait
from dataclasses import dataclass

from pdgate.transfer.base import (
    Corrupted,
    OutOfBounds,
    PeerLost,
    StaleDescriptor,
    TransferError,
)
from pdgate.transfer.kit.links import Address, Links
from pdgate.transfer.kit.op import Op
from pdgate.transfer.kit.ranges import Piece
from pdgate.transfer.kit.running import Interrupted, Running
from pdgate.transfer.kit.sockets import send_views
from pdgate.transfer.tcp import wire
from pdgate.transfer.tcp.in_use import InUse

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

    def ask(self, transfer: Running, pieces: Sequence[Piece], immediate: int | None) -> None:
        """One request on one connection. Raises TransferError, Interrupted."""
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
            transfer.on_interrupt(self.in_use.interrupt)
            with self.in_use.using(sock):
                status = _converse(sock, request, views)
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


def _converse(
    sock: socket.socket, request: wire.Request, views: Sequence[memoryview]
) -> wire.Status:
    head, checked = wire.encode(request), request.checked
    if request.op is wire.Op.WRITE:
        # All at once, without asking whether it is welcome: that would take a round trip.
        trailer = [wire.checksum(views)] if checked else []
        send_views(sock, [head, *views, *trailer])
        return wire.receive_answer(sock, checked=checked)
    sock.sendall(head)
    status = wire.receive_answer(sock, checked=checked)
    if status is wire.Status.OK:
        try:
            wire.receive_bytes(sock, views, checked=checked)
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
            talk.ask(transfer, share, None)
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
        talk.ask(transfer, [], immediate)
