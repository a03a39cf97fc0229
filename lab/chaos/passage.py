"""Passage: what a fault does to the bytes of one exchange.

A passage gets what the gateway asks and the engine answers, and passes it on, or not. The
base class passes everything. Each tells `happened` once, when its fault shows.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Protocol

from pdgate.lab.chaos.fault import Corrupt, Cut, Delay, Fault, HalfOpen, Refuse, SlowReader, Stall

TICK_SECONDS = 0.05
"""How often a slow reader takes its share."""

HELD = "a fault holds it"


class PassageEnd(Protocol):
    """One side of a link, as a passage sees it."""

    def send(self, data: bytes) -> None: ...
    def hold(self, why: str) -> None: ...
    def release(self, why: str) -> None: ...
    def abort(self) -> None: ...


class Ends(Protocol):
    """A link, as a passage sees it."""

    @property
    def near(self) -> PassageEnd: ...
    @property
    def far(self) -> PassageEnd: ...
    def reset(self) -> None: ...
    def close(self) -> None: ...


class Notes(Protocol):
    """The listener to one fault."""

    def happened(self) -> None: ...
    def missed(self) -> None: ...


class ChaosPassage:
    """
    Attributes:
        final: No other exchange follows on this link.
        hides_end: The gateway must not learn that the engine has left.
    """

    final = False
    hides_end = False

    def __init__(self, link: Ends, notes: Notes | None = None) -> None:
        self.link = link
        self._notes = notes

    def begins(self) -> None:
        """The gateway has begun to ask."""

    def asks(self, data: bytes) -> None:
        self.link.far.send(data)

    def answers(self, data: bytes) -> None:
        self.link.near.send(data)

    def over(self) -> None:
        """The exchange has ended, or the link. Called once."""
        if self._notes is not None:
            self._notes.missed()

    def shows(self) -> None:
        """The fault happens now; only the first time counts."""
        if self._notes is not None:
            self._notes.happened()
            self._notes = None


class RefusedPassage(ChaosPassage):
    def begins(self) -> None:
        self.final = True
        self.shows()
        self.link.reset()

    def asks(self, data: bytes) -> None:
        """Drop what is asked, also on a connection that stands from an earlier request."""


class Delayed(ChaosPassage):
    def __init__(self, link: Ends, notes: Notes, seconds: float) -> None:
        super().__init__(link, notes)
        self._seconds = seconds
        self._kept: list[bytes] | None = []
        self._timer: asyncio.TimerHandle | None = None

    def answers(self, data: bytes) -> None:
        if self._kept is None:
            self.link.near.send(data)
            return
        self._kept.append(data)
        if self._timer is None:
            self.shows()
            self.link.far.hold(HELD)
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._seconds, self._let_go)

    def over(self) -> None:
        super().over()
        if self._timer is not None:
            self._timer.cancel()

    def _let_go(self) -> None:
        assert self._kept is not None
        kept, self._kept = self._kept, None
        self.link.near.send(b"".join(kept))
        self.link.far.release(HELD)


class Counting(ChaosPassage, ABC):
    """Passes `after_bytes` of the answer; then `turns` decides about the rest."""

    def __init__(self, link: Ends, notes: Notes, after_bytes: int) -> None:
        super().__init__(link, notes)
        self._left_bytes = after_bytes
        self._turned = False

    def answers(self, data: bytes) -> None:
        if self._turned:
            self.rest(data)
            return
        if len(data) <= self._left_bytes:
            self._left_bytes -= len(data)
            self.link.near.send(data)
            return
        self._turned = True
        before, after = data[: self._left_bytes], data[self._left_bytes :]
        if before:
            self.link.near.send(before)
        self.shows()
        self.turns(after)

    @abstractmethod
    def turns(self, data: bytes) -> None:
        """The first bytes after the limit; never empty."""

    def rest(self, data: bytes) -> None:
        """All others."""


class Cutting(Counting):
    def __init__(self, link: Ends, notes: Notes, after_bytes: int, reset: bool) -> None:
        super().__init__(link, notes, after_bytes)
        self._reset = reset

    def turns(self, data: bytes) -> None:
        self.final = True
        if self._reset:
            self.link.reset()
        else:
            self.link.close()


class Stalling(Counting):
    def turns(self, data: bytes) -> None:
        self.final = self.hides_end = True
        self.link.far.hold(HELD)


class HalfOpening(Counting):
    def asks(self, data: bytes) -> None:
        if not self.final:
            super().asks(data)

    def turns(self, data: bytes) -> None:
        self.final = self.hides_end = True
        self.link.far.abort()


class Corrupting(Counting):
    def __init__(self, link: Ends, notes: Notes, after_bytes: int, bit: int) -> None:
        super().__init__(link, notes, after_bytes)
        self._bit = bit

    def turns(self, data: bytes) -> None:
        self.link.near.send(bytes((data[0] ^ (1 << self._bit),)) + data[1:])

    def rest(self, data: bytes) -> None:
        self.link.near.send(data)


class SlowlyRead(ChaosPassage):
    def __init__(self, link: Ends, notes: Notes, bytes_per_second: int) -> None:
        super().__init__(link, notes)
        self._bytes_per_tick = max(1, round(bytes_per_second * TICK_SECONDS))
        self._tick_seconds = self._bytes_per_tick / bytes_per_second
        self._kept = bytearray()
        self._timer: asyncio.TimerHandle | None = None

    def asks(self, data: bytes) -> None:
        self.shows()
        self._kept += data
        self.link.near.hold(HELD)
        if self._timer is None:
            self._take()

    def over(self) -> None:
        super().over()
        if self._timer is not None:
            self._timer.cancel()

    def _take(self) -> None:
        self.link.far.send(bytes(self._kept[: self._bytes_per_tick]))
        del self._kept[: self._bytes_per_tick]
        if self._kept:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._tick_seconds, self._take)
        else:
            self._timer = None
            self.link.near.release(HELD)


def passage(fault: Fault, link: Ends, notes: Notes, draw: Callable[[int], int]) -> ChaosPassage:
    """`draw(n)` is a number in range(n), for a fault that needs chance."""
    match fault:
        case Refuse():
            return RefusedPassage(link, notes)
        case Delay(seconds=seconds):
            return Delayed(link, notes, seconds)
        case Cut(after_bytes=after_bytes, reset=reset):
            return Cutting(link, notes, after_bytes, reset)
        case Stall(after_bytes=after_bytes):
            return Stalling(link, notes, after_bytes)
        case Corrupt(after_bytes=after_bytes):
            return Corrupting(link, notes, after_bytes, draw(8))
        case SlowReader(bytes_per_second=bytes_per_second):
            return SlowlyRead(link, notes, bytes_per_second)
        case HalfOpen(after_bytes=after_bytes):
            return HalfOpening(link, notes, after_bytes)
