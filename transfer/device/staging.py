"""Pinned host memory that a device's bytes pass through, where a backend moves host memory only.

    out     device --copy--> buffer A | on the wire         into    wire --> buffer A | copied
                             buffer B | being copied                         buffer B | being filled

A lane is two buffers and a stream, and one transfer's at a time; a pool has a few lanes, and who
finds none waits. A lane is given back only when no copy from or to its buffers is under way.
"""

import logging
import math
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from pdgate.transfer.base import TransferError
from pdgate.transfer.device.base import Device, DeviceEvent, DeviceStream, Pinned, wait
from pdgate.transfer.runtime.running import TransferInterrupted

BUFFER_BYTES: Final = 4 << 20
MAX_PIECES: Final = 4096
LOOK_SECONDS: Final = 0.05

log = logging.getLogger(__name__)

Ranges = Sequence[tuple[int, int]]
"""(offset or address, bytes)"""
Stop = Callable[[], bool]


class Lane:
    """Methods raise Interrupted if `stop` says so, DeviceError.

    `buffers`, of one size, may be others than a pool's.
    """

    def __init__(self, device: Device, buffers: tuple[memoryview, memoryview], stop: Stop) -> None:
        self._device = device
        self._buffers = buffers
        self._stream = device.stream()
        self.stop = stop

    @property
    def buffer_bytes(self) -> int:
        return self._buffers[0].nbytes

    def out(self, batches: Iterable[Ranges]) -> Iterator[memoryview]:
        """The bytes of each batch, which stay until the next is asked for."""
        ahead: deque[tuple[memoryview, DeviceEvent]] = deque()
        numbered = enumerate(batches)

        def begin() -> None:
            for number, pieces in numbered:
                view = self._view(number, pieces)
                self._device.gather(self._stream, view, pieces)
                ahead.append((view, self._stream.record()))
                return

        begin()
        while ahead:
            view, event = ahead.popleft()
            # Its buffer is free: the one before was done with when this one was asked for.
            begin()
            self._await(event)
            yield view

    def into(self, batches: Iterable[Ranges]) -> Iterator[memoryview]:
        """A buffer to fill for each batch; all are on the device when there is none left."""
        copied: dict[int, DeviceEvent] = {}
        for number, pieces in enumerate(batches):
            if (before := copied.get(number % 2)) is not None:
                self._await(before)
            view = self._view(number, pieces)
            yield view
            self._device.scatter(self._stream, view, pieces)
            copied[number % 2] = self._stream.record()
        for event in copied.values():
            self._await(event)

    @contextmanager
    def left_quiet(self) -> Iterator[None]:
        """A block after which no copy is under way, however it ends; one that is well has waited."""
        try:
            yield
        except BaseException:
            quiet(self._stream)
            raise

    def close(self) -> None:
        try:
            self._stream.close()
        except TransferError as error:
            log.warning("%s", error)

    def _view(self, number: int, pieces: Ranges) -> memoryview:
        return self._buffers[number % 2][: sum([length for _, length in pieces])]

    def _await(self, event: DeviceEvent) -> None:
        if not wait(event, math.inf, self.stop):
            raise TransferInterrupted


class Staging:
    """The lanes of one device for one use, made as they are needed."""

    def __init__(self, device: Device, lanes: int, buffer_bytes: int = BUFFER_BYTES) -> None:
        self._device = device
        self._buffer_bytes = buffer_bytes
        self._changed = threading.Condition()
        self._idle: list[tuple[Lane, tuple[Pinned, Pinned]]] = []
        self._left = lanes
        self._closed = False

    @contextmanager
    def taken(self, stop: Stop) -> Iterator[Lane]:
        """A lane for the block; nothing of it moves after the block.

        Raises TransferInterrupted if `stop` says so before there is one, DeviceError.
        """
        lane, buffers = self._take(stop)
        lane.stop = stop
        try:
            with lane.left_quiet():
                yield lane
        finally:
            with self._changed:
                if not self._closed:
                    self._idle.append((lane, buffers))
                    self._changed.notify()
            if self._closed:
                _free(lane, buffers)

    def close(self) -> None:
        with self._changed:
            self._closed = True
            idle, self._idle = self._idle, []
        for lane, buffers in idle:
            _free(lane, buffers)

    def _take(self, stop: Stop) -> tuple[Lane, tuple[Pinned, Pinned]]:
        with self._changed:
            while not self._idle and not self._left:
                self._changed.wait(LOOK_SECONDS)
                if stop() or self._closed:
                    raise TransferInterrupted
            if self._idle:
                return self._idle.pop()
            self._left -= 1
        try:
            return self._made()
        except BaseException:
            with self._changed:
                self._left += 1
            raise

    def _made(self) -> tuple[Lane, tuple[Pinned, Pinned]]:
        first = self._device.pinned(self._buffer_bytes)
        try:
            second = self._device.pinned(self._buffer_bytes)
        except BaseException:
            first.close()
            raise
        buffers = first, second
        try:
            return Lane(self._device, (first.view, second.view), lambda: False), buffers
        except BaseException:
            first.close()
            second.close()
            raise


def quiet(stream: DeviceStream) -> None:
    """Wait until no copy of it is under way."""
    try:
        stream.synchronize()
    except TransferError as error:
        # Of a lost device nothing moves any more either.
        log.warning("%s", error)


def cut(ranges: Ranges, most_bytes: int) -> Iterator[list[tuple[int, int]]]:
    """In order, at most so many bytes and MAX_PIECES at a time; long ranges are cut."""
    batch: list[tuple[int, int]] = []
    room = most_bytes
    for start, whole in ranges:
        done = 0
        while done < whole:
            length = min(whole - done, room)
            batch.append((start + done, length))
            done += length
            room -= length
            if not room or len(batch) == MAX_PIECES:
                yield batch
                batch, room = [], most_bytes
    if batch:
        yield batch


def _free(lane: Lane, buffers: Iterable[Pinned]) -> None:
    lane.close()
    for buffer in buffers:
        try:
            buffer.close()
        except TransferError as error:
            log.warning("%s", error)
