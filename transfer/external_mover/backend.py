"""KV transfer by a library that others wrote: what it does not enforce is enforced here.

    peer                                     owner
      | ENTER epoch       -- own socket ---> |  refused if the region is closed
      | read or write     -- the library --> |  the region stays while we are inside
      | LEAVE, immediate  -- own socket ---> |  was it open to the end? then count

    registration, bounds   ranges are checked against both regions before the library sees them
    epoch                  asked of the owner before the bytes move, and again after them
    deadline, cancel       we stop waiting; the library goes on, and so long the transfer has
                           not settled and neither region can be used again
    counted writes         said after the library's end of the write, once, on our socket

What it costs is two round trips for each transfer. What a peer reads in ENTER (the
owner's address and card) is enough for it to read and write all of the region by the library
alone. So only peers that have proven themselves (runtime/handshake.py) are told; what they then do,
and the library's own ports, cannot be checked here.
"""

import os
import socket
from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

from pdgate.transfer import descriptors
from pdgate.transfer.base import (
    Descriptor,
    PeerLost,
    Region,
    StaleDescriptor,
    TransferError,
    place,
)
from pdgate.transfer.external_mover import wire
from pdgate.transfer.external_mover.library import Library, Move, Piece
from pdgate.transfer.external_mover.owner import MoverOwner
from pdgate.transfer.external_mover.regions import VisitedMemory, VisitedRegion
from pdgate.transfer.external_mover.wire import BadMoverRequest
from pdgate.transfer.memory import DeviceMemory, Memory, view
from pdgate.transfer.runtime import memfd
from pdgate.transfer.runtime.channel import Channel
from pdgate.transfer.runtime.fleet import Identity
from pdgate.transfer.runtime.jobs import TransferPlan
from pdgate.transfer.runtime.links import Address, Links
from pdgate.transfer.runtime.listener import shut
from pdgate.transfer.runtime.moving import MoveOrder, Moving
from pdgate.transfer.runtime.running import RunningTransfer, TransferInterrupted
from pdgate.transfer.runtime.sockets import hung_up


class Visiting(Moving):
    @abstractmethod
    def open_library(self, host: str, advertise: str) -> Library:
        """Raises LookupError (not installed), OSError."""

    def __init__(
        self,
        host: str = "127.0.0.1",
        advertise: str = "",
        *,
        port: int = 0,
        identity: Identity | None = None,
    ) -> None:
        """Visits are received on host:port (0: any); peers dial `advertise`, or `host`."""
        super().__init__()
        identity = identity or Identity()
        self._host, self._advertise = host, advertise
        self._library = self.open_library(host, advertise or host)
        try:
            self._owner = MoverOwner(self.name, host, port, identity, self._library)
        except BaseException:
            self._library.close()
            raise
        self._address = {
            "host": advertise or host,
            "port": self._owner.port,
            "peer": identity.name.hex(),
        }
        self._links = Links(identity, self.name, self._left)
        self._cards: dict[Address, bytes] = {}
        self._moving = 0

    def allocate(self, length: int) -> Region:
        fd, memory = memfd.shared(length)
        try:
            return self._region(memory, fd)
        except BaseException:
            os.close(fd)
            raise

    def register(self, memory: Memory) -> Region:
        if isinstance(memory, DeviceMemory):
            self.check_pair(memory.device, memory.device)
            return self._region(memory, None)
        return self._region(view(memory), None)

    def adopter_options(self) -> Mapping[str, Any]:
        """Those of the library have to be added: it decides how peers are reached."""
        return {"host": self._host, "advertise": self._advertise}

    def adopt(self, fd: int, length: int) -> Region:
        descriptor = Descriptor(self.name, descriptors.new_epoch(), length, {})
        with self.open_still():
            return VisitedMemory(memfd.mapped(fd, length), descriptor, self._library)

    def close(self) -> None:
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._jobs.close()
        vacated = self._owner.close()
        self._links.close()
        # A library that still moves bytes for a peer must outlive us.
        if vacated and not self._moving:
            self._library.close()

    def _region(self, memory: memoryview | DeviceMemory, fd: int | None) -> Region:
        descriptor = descriptors.of_memory(self.name, memory, self._address)
        with self.open_still():
            region = VisitedRegion(memory, descriptor, self._library, self._owner.forget, fd)
            self._owner.add(region)
        return region

    def plan(self, order: MoveOrder) -> TransferPlan:
        owner = descriptors.owner(order.remote.address)

        def visit(transfer: RunningTransfer) -> None:
            def talk(channel: Channel) -> wire.MoverStatus:
                inside = _enter(transfer, channel, order.epoch)
                if inside.status is not wire.MoverStatus.OK:
                    return inside.status
                if inside.length != order.remote.length:
                    raise TransferError(f"{transfer.what}: the region has another length")
                with self._lock:
                    self._cards[owner] = inside.card
                failed = self._move(order, inside, channel.sock)
                leaving = (
                    wire.MoverRequest(wire.MoverWord.FAIL)
                    if failed
                    else wire.MoverRequest(wire.MoverWord.LEAVE, immediate=order.immediate)
                )
                status = _leave(transfer, channel, leaving)
                if failed and status is wire.MoverStatus.OK:
                    raise failed
                return status

            self._connected(transfer, owner, talk)

        return TransferPlan(visit)

    def _left(self, address: Address) -> None:
        """No connection to it is left, so nothing of it is inside. If it is gone its next life has another address,
        and else it is met anew.
        """
        with self._lock:
            card = self._cards.pop(address, None)
        if card is not None:
            self._library.left(card)

    def _move(
        self, order: MoveOrder, inside: wire.MoverAnswer, sock: socket.socket
    ) -> TransferError | None:
        """The library's part, which nothing interrupts. Its error, if it failed."""
        region = order.local
        assert isinstance(region, VisitedMemory)
        here, there = region.base, inside.base
        move = Move(
            order.op,
            inside.card,
            [Piece(here + local, there + remote, size) for local, remote, size in order.pieces],
            None if order.immediate is None else inside.ticket,
            lambda: self._closed or hung_up(sock),
            region.place,
            place(order.remote),
        )
        with region.visit() as usable:
            if not usable:
                raise StaleDescriptor("our own region is closed")
            with self._lock:
                self._moving += 1
            try:
                self._library.move(move)
            except TransferError as error:
                return error
            finally:
                with self._lock:
                    self._moving -= 1
        return None

    def _connected(
        self,
        transfer: RunningTransfer,
        address: Address,
        talk: Callable[[Channel], wire.MoverStatus],
    ) -> None:
        try:
            channel = self._links.take(
                address, lambda sock: transfer.on_interrupt(lambda: shut(sock))
            )
        except OSError as error:
            if transfer.over:
                raise TransferInterrupted from None
            raise PeerLost(f"{transfer.what}: {error}") from None
        try:
            status = talk(channel)
        except OSError as error:
            self._links.drop(address, channel)
            if transfer.over:
                raise TransferInterrupted from None
            raise PeerLost(f"{transfer.what}: {error}") from None
        except BadMoverRequest:
            self._links.drop(address, channel)
            raise TransferError(f"{transfer.what}: the peer speaks something else") from None
        except BaseException:
            self._links.drop(address, channel)
            raise
        self._links.give_back(address, channel)
        match status:
            case wire.MoverStatus.STALE:
                raise StaleDescriptor(f"{transfer.what}: the owner does not know this epoch")
            case wire.MoverStatus.MISSING:
                raise TransferError(f"{transfer.what}: the bytes did not show up at the peer")


def _enter(transfer: RunningTransfer, channel: Channel, epoch: bytes) -> wire.MoverAnswer:
    transfer.on_interrupt(lambda: shut(channel.sock))
    wire.send_request(channel, wire.MoverRequest(wire.MoverWord.ENTER, epoch))
    answer = wire.receive_answer(channel)
    # While the library works nothing may hang up: it would tell the owner that we have left.
    transfer.on_interrupt(None)
    return answer


def _leave(
    transfer: RunningTransfer, channel: Channel, leaving: wire.MoverRequest
) -> wire.MoverStatus:
    transfer.on_interrupt(lambda: shut(channel.sock))
    wire.send_request(channel, leaving)
    status = wire.receive_answer(channel).status
    transfer.on_interrupt(None)
    return status
