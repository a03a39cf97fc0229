"""The peer's side of a device's memory: through the window that its owner moves it by, or, where
the device's is ours and the other side is mapped, through buffers of our own.

    ours --slot 0--> theirs        while the owner copies one slot, we fill or empty the other
         --slot 1-->               if our side is a device's too
"""

import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from pdgate.transfer.base import (
    Forbidden,
    Op,
    OutOfBounds,
    PeerLost,
    StaleDescriptor,
    TransferError,
)
from pdgate.transfer.device.base import Pinned
from pdgate.transfer.device.staging import Lane, Ranges
from pdgate.transfer.memory import DeviceMemory
from pdgate.transfer.runtime.listener import shut
from pdgate.transfer.runtime.passage import device_of
from pdgate.transfer.runtime.ranges import Piece
from pdgate.transfer.runtime.regions import LocalMemory
from pdgate.transfer.runtime.running import RunningTransfer, TransferInterrupted
from pdgate.transfer.shm import wire
from pdgate.transfer.shm.foreign import batches
from pdgate.transfer.shm.segment import Segment

LOOK_SECONDS: Final = 0.05
BREAK_OFF_SECONDS: Final = 0.5
"""For the owner's answer to a transfer that is given up: then the window is good for the next."""

_REFUSALS: Final[dict[wire.ShmStatus, Callable[[str], TransferError]]] = {
    wire.ShmStatus.STALE: StaleDescriptor,
    wire.ShmStatus.OUT_OF_BOUNDS: OutOfBounds,
    wire.ShmStatus.FORBIDDEN: Forbidden,
    wire.ShmStatus.FAILED: TransferError,
}


class _Refused(Exception):
    """The owner did not do it, and is ready for the next."""

    def __init__(self, error: TransferError) -> None:
        super().__init__(str(error))
        self.error = error


class StagedWindow:
    """One transfer at a time.

    Attributes:
        broken: A transfer was left in the middle: what the owner says next is not known.
    """

    def __init__(self, sock: socket.socket, segment: Segment, slot_bytes: int) -> None:
        """Raises TransferError."""
        if not 0 < 2 * slot_bytes <= segment.memory.nbytes:
            raise TransferError(f"the peer's window has no slots of {slot_bytes} bytes")
        self.broken = False
        self._sock = sock
        self._segment = segment
        self._slots = segment.memory[:slot_bytes], segment.memory[slot_bytes : 2 * slot_bytes]
        self._alone = threading.Lock()
        self._lock = threading.Lock()
        # Whose answer the owner owes.
        self._asking: RunningTransfer | None = None
        self._lanes: dict[str, tuple[Lane, Pinned]] = {}

    def move(
        self,
        transfer: RunningTransfer,
        op: Op,
        local: LocalMemory,
        epoch: bytes,
        pieces: Sequence[Piece],
        immediate: int | None,
    ) -> None:
        """Raises TransferError, TransferInterrupted."""
        with self._taken(transfer):
            try:
                self._move(transfer, op, local, epoch, pieces, immediate)
            except _Refused as refused:
                raise refused.error from None
            except TransferInterrupted:
                # Between two words: the owner has no answer under way.
                raise
            except OSError as error:
                self.broken = True
                if transfer.over:
                    raise TransferInterrupted from None
                raise PeerLost(f"{transfer.what}: {error}") from None
            except BaseException:
                self.broken = True
                raise

    def close(self) -> None:
        """Waits for a transfer that still uses it."""
        with self._alone:
            for lane, pinned in self._lanes.values():
                lane.close()
                pinned.close()
            self._lanes.clear()

    @contextmanager
    def _taken(self, transfer: RunningTransfer) -> Iterator[None]:
        while not self._alone.acquire(timeout=LOOK_SECONDS):
            if transfer.over:
                raise TransferInterrupted
        try:
            if self.broken:
                raise PeerLost(f"{transfer.what}: another transfer was broken off")
            yield
        finally:
            self._alone.release()

    def _break_off(self, transfer: RunningTransfer) -> None:
        """When it is over: nothing more of it is said, but the owner's answer has to be waited for."""
        timer = threading.Timer(BREAK_OFF_SECONDS, self._shut_on, [transfer])
        timer.daemon = True
        try:
            timer.start()
        except RuntimeError:
            # No more threads: without one the answer would be waited for for ever.
            self._shut_on(transfer)

    def _shut_on(self, transfer: RunningTransfer) -> None:
        with self._lock:
            if self._asking is transfer:
                self.broken = True
                shut(self._sock)

    def _move(
        self,
        transfer: RunningTransfer,
        op: Op,
        local: LocalMemory,
        epoch: bytes,
        pieces: Sequence[Piece],
        immediate: int | None,
    ) -> None:
        cuts = list(batches(pieces, self._slots[0].nbytes))
        base = 0 if local.on_device is None else local.on_device.address
        ours = [[(base + here, length) for here, _, length in cut] for cut in cuts]
        transfer.on_interrupt(lambda: self._break_off(transfer))
        with self._lane(transfer, local) as lane:
            # To its end: only then the last copies have been waited for.
            for number, _ in enumerate(lane.out(ours) if op is Op.WRITE else lane.into(ours)):
                counts = immediate if number == len(cuts) - 1 else None
                self._ask(transfer, op, number % 2, epoch, cuts[number], counts)
            if not cuts and immediate is not None:
                self._ask(transfer, op, 0, epoch, [], immediate)
        transfer.on_interrupt(None)

    def _ask(
        self,
        transfer: RunningTransfer,
        op: Op,
        slot: int,
        epoch: bytes,
        cut: Sequence[Piece],
        immediate: int | None,
    ) -> None:
        offsets, lengths = [there for _, there, _ in cut], [length for _, _, length in cut]
        with self._lock:
            # With the lock: after `_shut_on` nothing of it is asked any more.
            if transfer.over:
                raise TransferInterrupted
            self._asking = transfer
        try:
            wire.send_move(self._sock, wire.SlotMove(op, slot, epoch, offsets, lengths, immediate))
            status = wire.receive_moved(self._sock)
        except wire.BadShmMessage:
            raise TransferError(f"{transfer.what}: the peer speaks something else") from None
        finally:
            with self._lock:
                self._asking = None
        if status is not wire.ShmStatus.OK:
            # The window is as good as before, and is not to be shut with this transfer's end.
            transfer.on_interrupt(None)
            error = _REFUSALS.get(status, TransferError)
            raise _Refused(error(f"{transfer.what}: {status.name.lower().replace('_', ' ')}"))

    @contextmanager
    def _lane(self, transfer: RunningTransfer, local: LocalMemory) -> "Iterator[Lane | _HostSlots]":
        if local.on_device is None:
            yield _HostSlots(local.memory, self._slots)
            return
        lane = self._lane_of(local.on_device)
        lane.stop = lambda: transfer.over
        with lane.left_quiet():
            yield lane

    def _lane_of(self, memory: DeviceMemory) -> Lane:
        found = self._lanes.get(memory.device)
        if found is None:
            device = device_of(memory)
            pinned = device.pin(self._segment.memory)
            try:
                found = Lane(device, self._slots, lambda: False), pinned
            except BaseException:
                pinned.close()
                raise
            self._lanes[memory.device] = found
        return found[0]


class _HostSlots:
    """What a Lane does, of which the buffers are the window's slots, for memory that we reach."""

    def __init__(self, memory: memoryview, slots: tuple[memoryview, memoryview]) -> None:
        self._memory = memory
        self._slots = slots

    def out(self, batches: Sequence[Ranges]) -> Iterator[memoryview]:
        for number, pieces in enumerate(batches):
            slot, at = self._slots[number % 2], 0
            for offset, length in pieces:
                slot[at : at + length] = self._memory[offset : offset + length]
                at += length
            yield slot

    def into(self, batches: Sequence[Ranges]) -> Iterator[memoryview]:
        for number, pieces in enumerate(batches):
            slot, at = self._slots[number % 2], 0
            yield slot
            for offset, length in pieces:
                self._memory[offset : offset + length] = slot[at : at + length]
                at += length


def through_buffers(
    lane: Lane,
    memory: DeviceMemory,
    op: Op,
    pieces: Sequence[Piece],
    copy: Callable[[memoryview, Sequence[Piece]], None],
) -> None:
    """Between our device and memory that the host reaches: `copy` between a buffer, whose offsets
    come first in its pieces, and that memory. Raises TransferInterrupted, TransferError.
    """
    cuts = list(batches(pieces, lane.buffer_bytes))
    ours = [[(memory.address + here, length) for here, _, length in cut] for cut in cuts]
    todo = iter(cuts)
    for view in lane.out(ours) if op is Op.WRITE else lane.into(ours):
        at = 0
        beside = []
        for _, there, length in next(todo):
            beside.append((at, there, length))
            at += length
        copy(view, beside)
