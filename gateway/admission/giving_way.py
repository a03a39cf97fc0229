"""Giving way: running calls of low urgency end for more urgent ones that wait, and wait for another turn themselves.

    an urgent call finds no room -> consider: who_gives_way (scheduling/admission/giving_way.py) -> their legs end
    room that is free            -> the more urgent of the line and of those that gave way; these keep their place
                                    until they have one, however full the line is and however long it takes

Which calls run is known in this process only, so only calls of the same worker give way. Calls that can be paused
are looked at when something waits, MOST_LOOKED_AT at a time and not more often than every PAUSE_SECONDS, so that a flood of
urgent calls costs no more than that. If these are not enough, the next ones are looked at.
"""

import asyncio
from collections import Counter
from time import monotonic
from types import TracebackType
from typing import Final, Self

from pdgate.forwarders.pausing import Pausing
from pdgate.gateway.admission.gate import AGAIN, LINE, OTHERS, FreeTurn, Gate, WaitingModel
from pdgate.protocols.instance import PLAIN
from pdgate.scheduling.admission import LEAST_URGENT, ORDINARY, LinePlace
from pdgate.scheduling.admission.giving_way import (
    RunningCall,
    can_be_in_time,
    looked_at,
    raised,
    who_gives_way,
    would_be_late,
)
from pdgate.scheduling.eligible import EligibleSet
from pdgate.scheduling.status import Status

PAUSE_SECONDS: Final = 0.02
BACK_SECONDS: Final = 30.0
"""For which a call that gave way waits for engines that can serve its model, when there are none any more."""
LEAVING_SECONDS: Final = 1.0
"""After which a call that is to end, and whose client does not take what it has, holds up no other decision."""

MOST_FREED: Final = 4096
READING, ANSWERING = "reading", "answering"


class GivingWayGate:
    """Those of one process.

    Attributes:
        gave_way: (model, READING or ANSWERING: what they were about) -> how often calls did.
    """

    def __init__(self, gate: Gate) -> None:
        self.gave_way: Counter[tuple[str, str]] = Counter()
        self._gate = gate
        # Urgency -> model -> those that run.
        self._running: dict[int, dict[WaitingModel, dict[LowTurn, None]]] = {}
        # Model -> where the next look for its calls begins, if the last one has not found enough.
        self._begins: dict[WaitingModel, int] = {}
        self._looks_on = False
        self._leaving: dict[LowTurn, float] = {}
        self._freed: dict[str, Status | None] = {}
        self._next = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def turn(self, name: str | None, place: LinePlace) -> FreeTurn:
        """Raises Overloaded."""
        gate = self._gate
        inner = gate.turn(name, place, False)
        if name is None:
            only = gate.eligible(None)
            name = "" if only is None else only.model
        return LowTurn(self, gate, name, place, inner)

    def has_less_urgent(self, urgency: int) -> bool:
        return any(level > urgency for level in self._running)

    def consider(self) -> None:
        """Consider the calls that wait; soon, if it was done a moment ago."""
        if not self._running or self._timer is not None:
            return
        now = monotonic()
        if now < self._next:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._next - now, self._again)
            return
        self._next = now + PAUSE_SECONDS
        self._leaving = {
            turn: since for turn, since in self._leaving.items() if now - since < LEAVING_SECONDS
        }
        self._looks_on = False
        for name, model in self._gate.models.items():
            # Until those that were to end have, nothing is known of who has room.
            if self._leaving:
                return
            if model.waiters and not model.there.beginning:
                self._for_one_of(name, model, now)
        if self._looks_on and not self._leaving and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(PAUSE_SECONDS, self._again)

    def goes_before(self, urgency: int, model: WaitingModel) -> bool:
        """Whether one that gave way does, before a call of that urgency that comes now."""
        now = monotonic()
        return any(
            isinstance(turn, LowTurn) and turn.urgency(now) <= urgency for turn in model.paused
        )

    def lets_in(self, name: str, model: WaitingModel) -> str:
        now = monotonic()
        turns = [turn for turn in model.paused if isinstance(turn, LowTurn)]
        first = min(turns, key=lambda turn: turn.urgency(now))
        its = first.urgency(now)
        if model.waiters and model.line.most_urgent() < its:
            return LINE
        eligible, others_first = self._gate.eligible(name), self._is_of_others(model, its)
        if eligible is not None and (eligible.disaggregated or bool(eligible.up[PLAIN])):
            if others_first:
                # No less urgent one of its own model passes it either.
                return OTHERS
        elif others_first or first.since > now - BACK_SECONDS:
            # An engine may come back meanwhile, and who waits in the line learns that there is none.
            # Whether decode would stand in for prefill is not known here.
            return LINE
        waiter = model.ends_pause(first)
        self._gate.waits_no_more(model)
        if waiter is not None and not waiter.cancelled():
            model.had_turn()
            waiter.set_result(None)
        return AGAIN

    # A turn's.

    def entered(self, turn: "LowTurn") -> None:
        level = self._running.setdefault(turn.place.urgency, {})
        level.setdefault(turn.model, {})[turn] = None

    def left(self, turn: "LowTurn") -> None:
        """Forget a turn that holds no engine any more."""
        level = self._running.get(turn.place.urgency)
        its = None if level is None else level.get(turn.model)
        if level is not None and its is not None:
            its.pop(turn, None)
            if not its:
                del level[turn.model]
            if not level:
                del self._running[turn.place.urgency]
        if self._leaving.pop(turn, None) is not None and not self._leaving:
            # There may be others who wait, when the one for which it ended has begun.
            self._next = 0.0
            asyncio.get_running_loop().call_soon(self.consider)

    # How.

    def _again(self) -> None:
        self._timer = None
        self.consider()

    def _is_of_others(self, model: WaitingModel, urgency: int) -> bool:
        """Whether more urgent calls of another model of the same engines wait: what these have left is for them, if it can be."""
        gate = self._gate
        for name, one in gate.models.items():
            is_before = one.waiters and _meets(one, model) and one.line.most_urgent() < urgency
            if is_before and (one.there is model.there or gate.has_room(name, one)):
                return True
        return False

    def _for_one_of(self, name: str, model: WaitingModel, now: float) -> None:
        """For the first of the most urgent that wait for this model."""
        gate, limits = self._gate, self._gate.limits
        urgency = model.line.most_urgent()
        eligible = gate.eligible(name)
        if eligible is None or not self.has_less_urgent(urgency):
            return
        place, since = next(
            (place, since)
            for place, (_, since) in model.waiters.items()
            if place.urgency == urgency
        )
        expected = model.pace.wait(0, now)
        if not would_be_late(limits, eligible, place.tokens, now - since, expected):
            return
        begins = self._begins.pop(model, 0)
        running, following = self._low(urgency, model, now, begins)
        others = gate.others(model)
        in_time = can_be_in_time(limits, eligible, place.tokens, now - since)
        chosen = who_gives_way(
            limits,
            eligible,
            urgency,
            model.there.begun,
            list(running),
            others,
            self._freed,
            in_time,
        )
        if following and not chosen:
            self._begins[model] = following
            # Until all were looked at; then again when something happens.
            self._looks_on = self._looks_on or following > begins
        place.made_way += len(chosen)
        for one in chosen:
            turn = running[one]
            self._leaving[turn] = now
            self.gave_way[turn.name, READING if one.reading else ANSWERING] += 1
            self._note_freed(eligible, one)
        # When all are noted: some end at once.
        for one in chosen:
            pausing = running[one].pausing
            assert pausing is not None
            pausing.pause()

    def _low(
        self, urgency: int, model: WaitingModel, now: float, begins: int
    ) -> "tuple[dict[RunningCall, LowTurn], int]":
        """Of those that run at engines of this model, some that may give way to one of this urgency; and as of `looked_at`."""
        there = [
            turns
            for level in range(LEAST_URGENT, max(urgency, ORDINARY), -1)
            for other, turns in self._running.get(level, {}).items()
            if _meets(other, model)
        ]
        some, following = looked_at(there, begins)
        found: dict[RunningCall, LowTurn] = {}
        for turn in some:
            its, pausing = turn.urgency(now), turn.pausing
            if its > urgency and pausing is not None:
                one = pausing.running(its, turn.model.there is model.there)
                if one is not None:
                    found[one] = turn
        return found, following

    def _note_freed(self, eligible: EligibleSet, one: RunningCall) -> None:
        if self._gate.limits.kv_free is None:
            return
        if len(self._freed) >= MOST_FREED:
            self._freed.clear()
        for engines in eligible.up.values():
            for engine in engines:
                if engine.instance.id == one.answering:
                    self._freed[one.answering] = engine.status


def _meets(one: WaitingModel, other: WaitingModel) -> bool:
    """Whether an engine serves both."""
    return one is other or not one.engines.isdisjoint(other.engines)


class LowTurn(FreeTurn):
    """Turn of a call that may give way, as a block.

    Attributes:
        place: Its first one, with its urgency.
        since: When it gave way last.
    """

    __slots__ = ("_giving", "_inner", "_waited", "name", "place", "since")

    def __init__(
        self, giving: GivingWayGate, gate: Gate, name: str, place: LinePlace, inner: FreeTurn
    ) -> None:
        super().__init__(gate, inner.model)
        self._giving = giving
        self._inner: FreeTurn | None = inner
        self._waited = 0.0
        self.name = name
        self.place = place
        self.since = 0.0
        self.waits = inner.waits
        self.pausing = Pausing(self.again)

    def urgency(self, now: float) -> int:
        """Urgency as the waiting has raised it."""
        waits = now - self.since if self in self._model.paused else 0.0
        return raised(self.place.urgency, self._waited + waits)

    async def come(self) -> None:
        inner = self._inner
        assert inner is not None
        await inner.come()
        self.seconds, self.made_way, self.waits = inner.seconds, inner.made_way, False
        self._giving.entered(self)

    async def again(self) -> None:
        """Ends the turn, and returns when there is another one."""
        gate, model, giving = self._gate, self._model, self._giving
        inner, self._inner = self._inner, None
        assert inner is not None
        self.since = monotonic()
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        model.pauses(self, waiter)
        gate.waits(model)
        gate.wind()
        giving.left(self)
        inner.__exit__(None, None, None)
        try:
            await waiter
        except BaseException:
            if model.ends_pause(self) is not None:
                gate.waits_no_more(model)
            elif waiter.done() and not waiter.cancelled():
                # It was let in, and left in the same moment.
                gate.begins(model)
                gate.ended(model)
            raise
        self._waited += monotonic() - self.since
        gate.begins(model)
        self._inner = model.at_once
        giving.entered(self)

    def __enter__(self) -> Self:
        if not self.waits:
            self._giving.entered(self)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        inner, pausing = self._inner, self.pausing
        if pausing is not None:
            pausing.close()
        if inner is not None:
            self._giving.left(self)
            inner.__exit__(kind, error, trace)
