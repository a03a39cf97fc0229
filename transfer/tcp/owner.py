"""The owner's side of tcp: what peers may do with regions, and a thread per connection."""

import logging
import os
import socket
import struct
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager

from pdgate.transfer.base import Descriptor, Grant, Op, StaleDescriptor, TransferError
from pdgate.transfer.memory import DeviceMemory
from pdgate.transfer.parts import Part
from pdgate.transfer.runtime import fleet
from pdgate.transfer.runtime.arrivals import Arrivals
from pdgate.transfer.runtime.channel import Channel, Door
from pdgate.transfer.runtime.fleet import Identity
from pdgate.transfer.runtime.grants import Entrance, GrantVerdict, PartGrant
from pdgate.transfer.runtime.listener import Listener
from pdgate.transfer.runtime.passage import Direct, Passage
from pdgate.transfer.runtime.regions import LocalMemory
from pdgate.transfer.runtime.running import TransferInterrupted
from pdgate.transfer.runtime.sockets import gone
from pdgate.transfer.tcp import wire

STALL_SECONDS = 30.0
"""Without a byte in the middle of a request; a peer that is slower has left."""
PURPOSE = "tcp"

log = logging.getLogger(__name__)

_STATUSES = {
    GrantVerdict.FINE: wire.TcpStatus.OK,
    GrantVerdict.STALE: wire.TcpStatus.STALE,
    GrantVerdict.FORBIDDEN: wire.TcpStatus.FORBIDDEN,
}
_OPS = {wire.TcpOp.READ: Op.READ, wire.TcpOp.WRITE: Op.WRITE}


class TcpRegion(LocalMemory):
    """Memory that peers may reach: by its own epoch all of it, by a grant's a part."""

    arrivals: Arrivals

    def __init__(
        self,
        memory: memoryview | DeviceMemory,
        descriptor: Descriptor,
        owner: "TcpOwner",
        ways: tuple[Passage, Passage],
        fd: int | None = None,
    ) -> None:
        """`ways`: of its bytes when we move them, and when peers do. `fd`: of the file that the
        memory is, if it is one; it is closed with the region.
        """
        super().__init__(memory, descriptor)
        self.passage, self.served = ways
        self._fd = fd
        self.arrivals = Arrivals()
        self._owner = owner
        self._entrance = Entrance()
        self._grants: set[PartGrant[TcpRegion]] = set()

    def share(self) -> int | None:
        return self._fd

    def grant(
        self, peer: str, op: Op, part: Part, seconds: float, immediates: range | None = None
    ) -> Grant:
        grant: PartGrant[TcpRegion] = PartGrant(
            self, peer, op, part, seconds, immediates, self._forget
        )
        self._grants.add(grant)
        self._owner.add(grant.descriptor, grant)
        return grant

    def _forget(self, grant: "PartGrant[TcpRegion]") -> None:
        self._owner.forget(grant.descriptor)
        self._grants.discard(grant)

    def used_by(self, sock: socket.socket) -> AbstractContextManager[bool]:
        return self._entrance.used_by(sock)

    def close(self) -> None:
        # First, so that no request begins that is let in by a grant.
        self._closed = True
        if not self._entrance.shut():
            return
        for grant in list(self._grants):
            grant.revoke()
        if self._fd is not None:
            os.close(self._fd)
        self._owner.forget(self.descriptor)
        self.arrivals.fail(StaleDescriptor("the region was closed"))


class TcpOwner:
    def __init__(self, host: str, port: int, identity: Identity, *, checked: bool) -> None:
        """`checked`: a peer that does not send checksums is refused. Raises OSError, ValueError."""
        sock = fleet.listening("the tcp transfer", host, port, identity)
        self.port: int = sock.getsockname()[1]
        self._checked = checked
        self._open: dict[bytes, TcpRegion | PartGrant[TcpRegion]] = {}
        door = Door("tcp", identity, {PURPOSE: self._serve}, _older)
        self._listener = Listener("pdgate-tcp", sock, door)

    def add(self, descriptor: Descriptor, opened: TcpRegion | PartGrant[TcpRegion]) -> None:
        self._open[bytes.fromhex(descriptor.epoch)] = opened

    def forget(self, descriptor: Descriptor) -> None:
        self._open.pop(bytes.fromhex(descriptor.epoch), None)

    def close(self) -> None:
        for opened in list(self._open.values()):
            if isinstance(opened, TcpRegion):
                opened.close()
        self._listener.close()

    def _serve(self, channel: Channel) -> None:
        limit_stalls(channel.sock, STALL_SECONDS)
        checked = self._checked
        try:
            while request := wire.receive_request(channel):
                checked = request.checked
                if self._checked and not checked:
                    raise wire.BadTcpRequest
                self._answer(channel, request)
        except wire.BadTcpRequest:
            _say(channel, wire.TcpStatus.BAD_REQUEST, checked=checked)

    def _answer(self, channel: Channel, request: wire.TcpRequest) -> None:
        opened = self._open.get(request.epoch)
        if opened is None:
            _refuse(channel, request, wire.TcpStatus.STALE)
        elif isinstance(opened, TcpRegion):
            _answer_of(opened, channel, request, None)
        else:
            with opened.used_by(channel.sock) as usable:
                if usable:
                    _answer_of(opened.region, channel, request, opened)
                else:
                    _refuse(channel, request, wire.TcpStatus.STALE)


def _answer_of(
    region: TcpRegion,
    channel: Channel,
    request: wire.TcpRequest,
    grant: PartGrant[TcpRegion] | None,
) -> None:
    with region.used_by(channel.sock) as usable:
        status = wire.TcpStatus.OK
        if not usable:
            status = wire.TcpStatus.STALE
        elif not request.inside(region.descriptor.length):
            status = wire.TcpStatus.OUT_OF_BOUNDS
        elif grant is not None:
            verdict = grant.judge(
                channel.peer,
                _OPS[request.op],
                request.offsets,
                request.lengths,
                request.immediate,
            )
            status = _STATUSES[verdict]
        if status is wire.TcpStatus.OK:
            _move(channel, request, region)
        else:
            _refuse(channel, request, status)


def _say(channel: Channel, status: wire.TcpStatus, *, checked: bool) -> None:
    channel.sock.sendall(channel.sealed(wire.answer(status, checked=checked)))


def _refuse(channel: Channel, request: wire.TcpRequest, status: wire.TcpStatus) -> None:
    """The bytes of a write are already on their way, and the next request comes after them."""
    _say(channel, status, checked=request.checked)
    if request.op is wire.TcpOp.WRITE:
        wire.drop(channel.sock, request)


def _move(channel: Channel, request: wire.TcpRequest, region: TcpRegion) -> None:
    """Raises OSError."""
    ranges = list(zip(request.offsets, request.lengths, strict=True))
    if isinstance(region.served, Direct):
        _answer_with(channel, request, region, region.served.at_once(ranges))
        return
    try:
        with region.served.opened(lambda: gone(channel.sock)) as through:
            batches = through.out if request.op is wire.TcpOp.READ else through.into
            _answer_with(channel, request, region, batches(ranges))
    except (TransferInterrupted, TransferError) as error:
        # There is no status in the middle of bytes: the peer sees that we hang up.
        log.warning("%s did not move: %s", region.place, error)
        raise ConnectionAbortedError(str(error)) from None


def _answer_with(
    channel: Channel,
    request: wire.TcpRequest,
    region: TcpRegion,
    batches: Iterable[Sequence[memoryview]],
) -> None:
    """Raises OSError, and what the batches raise."""
    sock, checked = channel.sock, request.checked
    if request.op is wire.TcpOp.READ:
        answer = channel.sealed(wire.answer(wire.TcpStatus.OK, checked=checked))
        wire.send_bytes(sock, answer, batches, checked=checked)
        return
    status = wire.TcpStatus.OK
    try:
        wire.receive_bytes(sock, batches, checked=checked)
    except wire.CorruptTransfer:
        status = wire.TcpStatus.CORRUPT
    # Counted before the answer, so a writer that saw the end may rely on the count.
    if status is wire.TcpStatus.OK and request.immediate is not None:
        region.arrivals.count(request.immediate)
    _say(channel, status, checked=checked)


def _older(head: bytes) -> bytes:
    """To a peer from before the handshake, which takes it for a refusal."""
    magic = head[:4]
    if magic not in (wire.MAGIC, wire.CHECKED_MAGIC):
        return b""
    return wire.answer(wire.TcpStatus.BAD_REQUEST, checked=magic == wire.CHECKED_MAGIC)


def limit_stalls(sock: socket.socket, seconds: float) -> None:
    """By the kernel: with Python's own timeout each call would first ask whether it may."""
    limit = struct.pack("ll", int(seconds), int(seconds % 1 * 1e6))
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
