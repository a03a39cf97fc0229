"""The peer's side of tcp: a request to an owner, and a transfer that is shared by several."""

import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, wait
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from pdgate.transfer.base import (
    Corrupted,
    Forbidden,
    Op,
    OutOfBounds,
    PeerLost,
    StaleDescriptor,
    TransferError,
)
from pdgate.transfer.runtime.channel import Channel
from pdgate.transfer.runtime.links import Address, Links
from pdgate.transfer.runtime.listener import shut
from pdgate.transfer.runtime.passage import Direct, Passage
from pdgate.transfer.runtime.ranges import Piece
from pdgate.transfer.runtime.running import RunningTransfer, TransferInterrupted
from pdgate.transfer.tcp import wire

_REFUSALS: dict[wire.TcpStatus, Callable[[str], TransferError]] = {
    wire.TcpStatus.STALE: StaleDescriptor,
    wire.TcpStatus.OUT_OF_BOUNDS: OutOfBounds,
    wire.TcpStatus.BAD_REQUEST: TransferError,
    wire.TcpStatus.CORRUPT: Corrupted,
    wire.TcpStatus.FORBIDDEN: Forbidden,
}

_OPS = {Op.READ: wire.TcpOp.READ, Op.WRITE: wire.TcpOp.WRITE}


class InUse:
    """The connections of one transfer, which end together if it is interrupted."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._socks: set[socket.socket] = set()
        self._interrupted = False

    @contextmanager
    def using(self, sock: socket.socket) -> Iterator[None]:
        """Raises TransferInterrupted."""
        with self._lock:
            if self._interrupted:
                raise TransferInterrupted
            self._socks.add(sock)
        try:
            yield
        finally:
            with self._lock:
                self._socks.discard(sock)

    def interrupt(self) -> None:
        with self._lock:
            self._interrupted = True
            for sock in self._socks:
                shut(sock)


@dataclass(frozen=True, slots=True)
class Talk:
    """What the requests of one transfer have in common."""

    links: Links
    address: Address
    op: Op
    epoch: bytes
    passage: Passage
    checked: bool
    in_use: InUse

    def ask(
        self, transfer: RunningTransfer, pieces: Sequence[Piece], immediate: int | None
    ) -> None:
        """One request on one connection. Raises TransferError, TransferInterrupted."""
        request = wire.TcpRequest(
            _OPS[self.op],
            self.epoch,
            [remote for _, remote, _ in pieces],
            [length for _, _, length in pieces],
            immediate,
            self.checked,
        )
        ranges = [(local, length) for local, _, length in pieces]
        if isinstance(self.passage, Direct):
            status = self._asked(transfer, request, self.passage.at_once(ranges))
        else:
            with self.passage.opened(lambda: transfer.over) as through:
                batches = through.out if self.op is Op.WRITE else through.into
                status = self._asked(transfer, request, batches(ranges))
        if status is not wire.TcpStatus.OK:
            raise _REFUSALS[status](f"{transfer.what}: {status.name.lower().replace('_', ' ')}")

    def _asked(
        self,
        transfer: RunningTransfer,
        request: wire.TcpRequest,
        batches: Iterable[Sequence[memoryview]],
    ) -> wire.TcpStatus:
        what = transfer.what
        channel = self._channel(transfer)
        try:
            transfer.on_interrupt(self.in_use.interrupt)
            with self.in_use.using(channel.sock):
                status = _converse(channel, request, batches)
        except OSError as error:
            self.links.drop(self.address, channel)
            if transfer.over:
                raise TransferInterrupted from None
            raise PeerLost(f"{what}: {error}") from None
        except wire.BadTcpRequest:
            self.links.drop(self.address, channel)
            raise TransferError(f"{what}: the peer speaks something else") from None
        except BaseException:
            self.links.drop(self.address, channel)
            raise
        self.links.give_back(self.address, channel)
        return status

    def _channel(self, transfer: RunningTransfer) -> Channel:
        """Raises TransferError, TransferInterrupted."""
        with ExitStack() as stack:

            def watch(sock: socket.socket) -> None:
                transfer.on_interrupt(self.in_use.interrupt)
                stack.enter_context(self.in_use.using(sock))

            try:
                return self.links.take(self.address, watch)
            except OSError as error:
                if transfer.over:
                    raise TransferInterrupted from None
                raise PeerLost(f"{transfer.what}: {error}") from None


def _converse(
    channel: Channel, request: wire.TcpRequest, batches: Iterable[Sequence[memoryview]]
) -> wire.TcpStatus:
    sock, checked = channel.sock, request.checked
    head = channel.sealed(wire.encode(request))
    if request.op is wire.TcpOp.WRITE:
        # All at once, without asking whether it is welcome: that would take a round trip.
        wire.send_bytes(sock, head, batches, checked=checked)
        return wire.receive_answer(channel, checked=checked)
    sock.sendall(head)
    status = wire.receive_answer(channel, checked=checked)
    if status is wire.TcpStatus.OK:
        try:
            wire.receive_bytes(sock, batches, checked=checked)
        except wire.CorruptTransfer:
            return wire.TcpStatus.CORRUPT
    return status


def move_together(
    transfer: RunningTransfer,
    talk: Talk,
    shares: Sequence[Sequence[Piece]],
    immediate: int | None,
    threads: Executor,
) -> None:
    """A share on each connection; returns when none of them moves any more.

    A counted write ends with a request that moves nothing: all shares have landed then.
    Raises TransferError, TransferInterrupted.
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
