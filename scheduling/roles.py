"""Adaptive roles: the side that an engine able to serve both is to serve, the needier one. Pure.

    pressure of each side --> smoothed --> would one engine more, or less, make it better?
                                            |  three rounds in a row
                                            '--> Turn: the engine, the side it goes to, and why

An engine goes over to the other side if that is at BUSY or more, and if the side that it leaves
would be at less than 1 without it, and clearly better off than the other one was: so what has been
done is not undone, unless the load has moved by more than GAIN. Noise is held off by three things:
pressures are smoothed, the same must be right in PERSISTS rounds in a row, and an engine that has
changed stays for a while. One engine changes at a time, and none is the last of its side when it
goes.

A side that has no engine is another matter: it gets one at once.
"""

from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from math import exp
from typing import Final

from pdgate.protocols.instance import Role
from pdgate.scheduling.pressure import NONE, Pressure, mean

BUSY: Final = 0.8
GAIN: Final = 0.15
PERSISTS: Final = 3

SIDES: Final = (Role.PREFILL, Role.DECODE)


@dataclass(frozen=True, slots=True)
class Engine:
    """One that calls may go to, at this moment.

    Attributes:
        group: Engines that can be paired with each other have the same.
        side: PREFILL or DECODE; None if it is not decided yet, and it serves both.
        movable: Whether it can serve both.
        since: When it came to its side, on the clock of `decide`.
        turning: It has still work of the side that it has left.
        calls: In flight there.
    """

    id: str
    group: Hashable
    side: Role | None
    movable: bool
    since: float = 0.0
    turning: bool = False
    calls: int = 0
    pressure: Pressure = NONE


@dataclass(frozen=True, slots=True)
class Turn:
    """
    Attributes:
        first: It has not been on a side yet.
    """

    id: str
    to: Role
    reason: str
    first: bool = False


class Roles:
    def __init__(self, stay_seconds: float, smooth_seconds: float = 15.0) -> None:
        """
        Args:
            stay_seconds: The least that an engine serves a side before it goes back.
            smooth_seconds: What was seen that long ago counts a third.
        """
        self.stay_seconds = stay_seconds
        self._smooth_seconds = smooth_seconds
        self._pressures: dict[tuple[Hashable, Role], Pressure] = {}
        self._latest: float | None = None
        self._rows: dict[Hashable, tuple[Role, int]] = {}

    def pressure(self, group: Hashable, side: Role) -> Pressure:
        """Smoothed, of its engines together."""
        return self._pressures.get((group, side), NONE)

    def groups(self) -> list[Hashable]:
        """Those that were seen last."""
        return list(dict.fromkeys(group for group, _ in self._pressures))

    def see(self, engines: Sequence[Engine], now: float) -> None:
        """Takes in what they have to do; now and then, between two decisions."""
        share = 1.0
        if self._latest is not None:
            share = 1 - exp(-max(0.0, now - self._latest) / self._smooth_seconds)
        self._latest = now
        working: dict[tuple[Hashable, Role], list[Pressure]] = defaultdict(list)
        for engine in engines:
            if engine.side is not None and not engine.turning:
                working[engine.group, engine.side].append(engine.pressure)
        self._pressures = {
            key: self._pressures.get(key, mean(several)).towards(mean(several), share)
            for key, several in working.items()
        }

    def decide(self, engines: Sequence[Engine], now: float) -> list[Turn]:
        """New engines get their sides; of the others one at most changes."""
        groups: dict[Hashable, list[Engine]] = defaultdict(list)
        for engine in sorted(engines, key=lambda one: one.id):
            groups[engine.group].append(engine)
        self._rows = {group: row for group, row in self._rows.items() if group in groups}
        turns = [turn for group in groups.values() for turn in self._firsts(group)]
        if not turns:
            for group in groups.values():
                turn = self._change(group, now)
                if turn is not None:
                    return [turn]
        return turns

    def _firsts(self, engines: Sequence[Engine]) -> list[Turn]:
        """Whichever side has fewer, or is under more pressure."""
        turns = []
        count = {side: sum(one.side is side for one in engines) for side in SIDES}
        for engine in engines:
            if engine.side is None and engine.movable:
                prefill, decode = (self.pressure(engine.group, side).now for side in SIDES)
                if 0 in count.values() or max(prefill, decode) < BUSY:
                    to, why = min(SIDES, key=count.__getitem__), "the side with fewer engines"
                else:
                    to = Role.PREFILL if prefill > decode else Role.DECODE
                    why = "the side under more pressure"
                count[to] += 1
                turns.append(Turn(engine.id, to, why, first=True))
        return turns

    def _change(self, engines: Sequence[Engine], now: float) -> Turn | None:
        group = engines[0].group
        of = {side: [one for one in engines if one.side is side] for side in SIDES}
        for to, come_from in (SIDES, SIDES[::-1]):
            if not of[to] and len(of[come_from]) > 1:
                movable = [one for one in of[come_from] if one.movable]
                if movable:
                    return Turn(_least_busy(movable).id, to, f"no {to.value} engine is left")
        if any(one.turning for one in engines):
            # What it will do is not to be seen yet.
            return None
        for to, come_from in (SIDES, SIDES[::-1]):
            why = self._why(group, to, len(of[to]), come_from, len(of[come_from]))
            if why:
                row = self._rows.get(group)
                times = row[1] + 1 if row is not None and row[0] is to else 1
                self._rows[group] = to, times
                may = [
                    one
                    for one in of[come_from]
                    if one.movable and now - one.since >= self.stay_seconds
                ]
                if times < PERSISTS or not may:
                    return None
                del self._rows[group]
                return Turn(_least_busy(may).id, to, why)
        self._rows.pop(group, None)
        return None

    def _why(self, group: Hashable, to: Role, there: int, come_from: Role, left: int) -> str | None:
        """One engine more there would be better, in words; None if not."""
        if not there or left < 2:
            return None
        needs = self.pressure(group, to).now
        gives = self.pressure(group, come_from)
        without_it = gives.with_calls(left / (left - 1))
        if needs < BUSY or without_it >= min(1.0, (1 - GAIN) * needs):
            return None
        if self.pressure(group, to).with_calls(there / (there + 1)) > (1 - GAIN / there) * needs:
            # It is not the number of calls that makes it slow.
            return None
        return (
            f"{to.value} is at {needs:.2f} of its target, {come_from.value} at {gives.now:.2f}, "
            f"and would be at {without_it:.2f} with one engine less"
        )


def _least_busy(engines: Sequence[Engine]) -> Engine:
    return min(engines, key=lambda one: (one.calls, one.id))
