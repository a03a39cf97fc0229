"""Gate of admission: calls wait there until there is room for them, each for its turn, and not for ever.

    with gate.turn(call.model, LinePlace(urgency, tenant, tokens)) as turn:
        if turn.waits:
            await turn.come()
        ...     # engines may be reserved, at once: until then the room is kept

Without limits there is no gate. With room and no call waiting a call passes without a task, a
future or a timer. Who waits is let in when a call ends, when an engine has read a prompt
(`look_soon`), or, where an engine came up or says that it has pages, at the next tick.
"""

import asyncio
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from itertools import islice, takewhile
from time import monotonic, monotonic_ns
from types import TracebackType
from typing import Final, Protocol, Self

from pdgate.forwarders.pausing import Pausing
from pdgate.gateway.sync.workers.lines import SharedLine, SharedLines
from pdgate.protocols.call import Call
from pdgate.protocols.errors import GatewayError, Overloaded
from pdgate.protocols.instance import DECODE, PLAIN, PREFILL, Role
from pdgate.scheduling.admission import (
    NEVER,
    ORDINARY,
    Ample,
    Limits,
    Line,
    LinePlace,
    Pace,
    Room,
    seconds_to_read,
)
from pdgate.scheduling.admission.others import NOBODY, NOTHING_SAID, OtherProcesses
from pdgate.scheduling.eligible import EligibleSet
from pdgate.scheduling.endpoint import Endpoint
from pdgate.scheduling.endpoints import Endpoints

NOTHING: Final[Mapping[str, int]] = {}
_COUNTED: Final = (PREFILL, DECODE, PLAIN)

TICK_SECONDS: Final = 0.25
NEIGHBOURS_SECONDS: Final = 0.005
"""How soon a place that another process leaves is taken."""
LONGEST_ADVICE_SECONDS: Final = 60

MOST_AT_ONCE: Final = 256
"""Calls that are let in, or turned away, in one turn of the loop: 10,000 take a tenth of a second."""

FORGETS_FROM: Final = 64
"""So many models are remembered whether they are served or not: adapters with a version in their names come and go."""

FULL, HOPELESS, TOO_LONG, GAVE_WAY = "full", "hopeless", "too_long", "gave_way"
LATE = "late"
AGAIN, LINE, OTHERS = "again", "line", "others"
"""Whose a place is that is free: of a call that gave way, of the line of its model, or of other models' lines."""


def nothing_cached(call: Call) -> Mapping[str, int]:
    """Where no index knows what is cached."""
    return NOTHING


def always_split(call: Call, prefill: Endpoint) -> bool:
    """Return False, where no rule keeps calls on one engine."""
    return False


class GivesWay(Protocol):
    """Running calls of low urgency that end for others, and come again (giving_way.py).

    Attributes:
        gave_way: (model, what a call was about) -> how often one did.
    """

    gave_way: Counter[tuple[str, str]]

    def turn(self, name: str | None, place: LinePlace) -> "FreeTurn":
        """Turn of a call that may give way. Raise Overloaded."""

    def has_less_urgent(self, urgency: int) -> bool:
        """Whether such calls run."""

    def consider(self) -> None:
        """Calls wait, maybe for what less urgent ones have."""

    def goes_before(self, urgency: int, model: "WaitingModel") -> bool:
        """Whether one that gave way does, before a call of that urgency that comes now."""

    def lets_in(self, name: str, model: "WaitingModel") -> str:
        """Whose the place is that is free; by AGAIN a call that gave way has begun again."""


class Gate:
    """
    Attributes:
        giving_way: None where no call gives way.
        refused: (model, FULL, HOPELESS, TOO_LONG, GAVE_WAY or LATE) -> calls.
        limits: In force.
        models: Those for which calls have come, and some of those that nobody serves any more.
        line_length: Of all lines together, calls that gave way included.
    """

    def __init__(
        self,
        limits: Limits,
        endpoints: Endpoints,
        lines: SharedLines | None = None,
        cached: Callable[[Call], Mapping[str, int]] = nothing_cached,
        stays: Callable[[Call, Endpoint], bool] = always_split,
        staged: bool = False,
    ) -> None:
        """
        Args:
            lines: Those of other processes, if any; the limits of engines hold for all of them.
            cached: Instance id -> tokens of a call's prompt that it has: so much sooner it is read.
            stays: Whether decode would serve a call alone now, with that prefill engine for it.
            staged: Decode is chosen when prefill has answered.
        """
        self.refused: Counter[tuple[str, str]] = Counter()
        self.giving_way: GivesWay | None = None
        self.limits = limits
        self._staged = staged
        self._room = Room(limits, staged)
        self._endpoints = endpoints
        # Looked up here for every call, so without a function where they are there.
        self._eligible_sets = endpoints.eligible_sets
        self._lines = lines
        self._cached = cached
        self._stays = stays
        self._tick_seconds = TICK_SECONDS if lines is None else NEIGHBOURS_SECONDS
        self._next_check = 0.0
        self.models: dict[str, WaitingModel] = {}
        self._forgets_from = FORGETS_FROM
        # Sets of engines, by their ids, that serve some model.
        self._there: dict[frozenset[str], CallsThere] = {}
        # What was asked for last when all models were where they are served now: gone as soon as some engine changes.
        self._seen: tuple[str, EligibleSet | None] = "", None
        self._strangers = WaitingModel(self)
        self.line_length = 0
        self._timer: asyncio.TimerHandle | None = None
        self._looks_again = False

    def turn(self, name: str | None, place: LinePlace, may_give_way: bool = True) -> "FreeTurn":
        """Turn of a model's next call, to be entered at once. Raise Overloaded."""
        if place.urgency > ORDINARY and may_give_way and self.giving_way is not None:
            return self.giving_way.turn(name, place)
        try:
            eligible = self._eligible_sets.get(name) or self._endpoints.eligible(name)
        except GatewayError:
            # No engine serves it, which the scheduler says. A name that none knows is
            # not remembered: clients could make up many.
            return self._let_in(self.models.get(name or "", self._strangers))
        # Who names none waits in the line of the only one.
        key = eligible.model if name is None else name
        model = self.models.get(key)
        if model is None:
            model = self._add(key)
        if model.eligible is not eligible:
            self._serves(model, eligible)
        ample, there = model.ample, model.there
        if (
            there.begun < ample.begun
            and ample.reader.calls + there.beginning < ample.reading
            and not there.waiting
        ):
            model.begun += 1
            there.begun += 1
            return model.at_once
        return self._turn(key, eligible, model, place)

    def would_begin(self, name: str | None, place: LinePlace) -> bool:
        """Whether a turn of that call would not wait now. Raise Overloaded if it would be refused; no call leaves the line for it."""
        eligible = self.eligible(name)
        if eligible is None:
            return True
        key = eligible.model if name is None else name
        model = self.models.get(key)
        if model is None:
            model = self._add(key)
        if model.eligible is not eligible:
            self._serves(model, eligible)
        if self._may_begin(key, eligible, model, place):
            return True
        self._who_leaves(key, model, place)
        return False

    def put(self, limits: Limits) -> None:
        """Put other limits in force, for calls that wait, too."""
        self.limits, self._room = limits, Room(limits, self._staged)
        for model in self.models.values():
            model.eligible = None
            model.line.late_share = limits.late_share
        self.look()

    def look(self) -> None:
        """Let calls in for which there is room by now."""
        if not self.line_length:
            return
        waiting = [each for each in self.models.items() if each[1].waiters or each[1].paused]
        # No call leaves meanwhile, so what has no room for one of its models has none for the others: a hundred adapters cost one question.
        full: set[CallsThere] = set()
        # Engines may serve several models: those take turns, the one first that had its last one longest ago.
        left = MOST_AT_ONCE
        while waiting and left > 0:
            waiting.sort(key=_last_turn)
            waiting = [each for each in waiting if self._let_one_in(*each, full)]
            left -= len(waiting)
        if waiting:
            self.look_soon()

    def waiting(self) -> Iterator[tuple[str, int]]:
        """(model, calls that wait for it)"""
        return ((name, len(model.line) + len(model.paused)) for name, model in self.models.items())

    def _let_one_in(self, name: str, model: "WaitingModel", full: "set[CallsThere]") -> bool:
        """Whether one could be, and more wait."""
        if model.eligible is not None and model.there in full:
            # One that no engine serves any more has no such set (`_serves`), and is not to wait for these.
            return False
        eligible = self.eligible(name)
        # Without one no engine serves it any more, which the scheduler says.
        if eligible is not None:
            if model.eligible is not eligible:
                self._serves(model, eligible)
            if model.there in full:
                return False
            if not self._room_for(eligible, model, model.there.since):
                full.add(model.there)
                return False
        goes_to = self._lets_in(name, model) if model.paused else LINE
        if goes_to != AGAIN:
            if goes_to == OTHERS or not model.waiters:
                return False
            self._begin_next(name, model)
        return bool(model.waiters or model.paused)

    # A turn's.

    def _turn(
        self, key: str, eligible: EligibleSet, model: "WaitingModel", place: LinePlace
    ) -> "FreeTurn":
        """Where a closer look is needed. Raises Overloaded."""
        if self._may_begin(key, eligible, model, place):
            return self._let_in(model)
        room, tokens, call = self._room, place.tokens, place.call
        cached = NOTHING if call is None else self._cached(call)
        place.due, place.seconds = room.due(eligible, tokens, monotonic(), cached)
        # Who waits may be remembered for longer than it does, and its body may be large.
        place.call = None
        behind_others = model.paused or (model.there.waiting and not model.waiters)
        waiter = self._join(key, model, place)
        if behind_others:
            # There may be room for these that nothing has told of.
            self.look_soon()
        return WaitingTurn(self, model, place, waiter)

    def _may_begin(
        self, key: str, eligible: EligibleSet, model: "WaitingModel", place: LinePlace
    ) -> bool:
        """Whether it need not wait. Raise Overloaded if it would be late wherever it goes."""
        longest, tokens, call = self.limits.ttft_seconds, place.tokens, place.call
        late = 0.0 if longest is None else _seconds_late(eligible, tokens, longest)
        # Calls that wait for these engines, by whatever model.
        alone = model.there.waiting == len(model.paused)
        is_first = alone and (not model.paused or self._overtakes(place, model))
        if not late and is_first and self._room_for(eligible, model):
            return True
        stays = call is not None and self._stays_at_decode(eligible, call)
        if late and stays and longest is not None:
            late = _seconds_late(eligible, tokens, longest, DECODE)
        if late:
            raise self._refusal(key, LATE, late)
        return stays and self._has_room_at_decode(eligible, model)

    def _let_in(self, model: "WaitingModel") -> "FreeTurn":
        model.began()
        model.there.tell()
        return model.at_once

    def _join(self, key: str, model: "WaitingModel", place: LinePlace) -> "asyncio.Future[None]":
        """What to wait for. Raises Overloaded."""
        self._make_place(key, model, place)
        if not model.waiters:
            model.since = monotonic_ns()
        model.line.join(place)
        waiter = asyncio.get_running_loop().create_future()
        model.waiters[place] = waiter, monotonic()
        self.waits(model)
        self.wind()
        if self.giving_way is not None:
            self.giving_way.consider()
        return waiter

    def waits(self, model: "WaitingModel") -> None:
        """A call more does for this model."""
        self.line_length += 1
        there = model.there
        there.waiting += 1
        if there.waiting == 1:
            there.since = monotonic_ns()
            there.tell()

    def waits_no_more(self, model: "WaitingModel") -> None:
        """One that did."""
        self.line_length -= 1
        there = model.there
        there.waiting -= 1
        if not there.waiting:
            there.tell()

    def begins(self, model: "WaitingModel") -> None:
        """One that was let in is about to reserve its engines.

        Then it is known what they have still room for: they are not to wait for it until they have read this one.
        """
        model.beginning -= 1
        model.there.beginning -= 1
        model.there.tell()
        self.look_soon()

    def look_soon(self) -> None:
        """Look when what happens now is over: who lets an engine go may be about to reserve another one."""
        if self.line_length and not self._looks_again:
            self._looks_again = True
            asyncio.get_running_loop().call_soon(self._look_again)

    def _look_again(self) -> None:
        self._looks_again = False
        self.look()

    def _left_line(self, model: "WaitingModel", place: LinePlace) -> None:
        """Its client is gone, or it is refused."""
        if model.waiters.pop(place, None) is not None:
            model.line.leave(place)
            self.waits_no_more(model)
            if not model.line:
                model.pace.rest()

    def ended(self, model: "WaitingModel") -> None:
        there = model.there
        model.begun -= 1
        there.begun -= 1
        if there.shared is not None:
            there.tell()
        if self.line_length:
            self.look()

    # How.

    def has_room(self, name: str, model: "WaitingModel") -> bool:
        """Whether one of those that wait for it may begin."""
        eligible = self.eligible(name)
        return eligible is not None and self._room_for(eligible, model, model.there.since)

    def _room_for(
        self, eligible: EligibleSet, model: "WaitingModel", since: int | None = None
    ) -> bool:
        """`since`: as in `Room.for_one_more`."""
        if model.eligible is not eligible:
            self._serves(model, eligible)
        there, others = model.there, self.others(model)
        return self._room.for_one_more(eligible, there.begun, there.beginning, others, since)

    def _stays_at_decode(self, eligible: EligibleSet, call: Call) -> bool:
        """Whether the call would not be split, and so need not wait for prefill."""
        prefill = self._room.least_busy_reader(eligible) if eligible.disaggregated else None
        return prefill is not None and self._stays(call, prefill)

    def _has_room_at_decode(self, eligible: EligibleSet, model: "WaitingModel") -> bool:
        """Of a call that stays there."""
        there, others = model.there, self.others(model)
        return self._room.for_one_alone(eligible, DECODE, there.begun, there.beginning, others)

    def others(self, model: "WaitingModel") -> OtherProcesses:
        """What other processes say of the engines that serve it."""
        if self._lines is None:
            return NOBODY
        self._lines.take_in()
        shared = model.there.shared
        return NOTHING_SAID if shared is None else shared.others()

    def _serves(self, model: "WaitingModel", eligible: EligibleSet) -> None:
        """These engines serve the model now; maybe others, too."""
        self._put(model, eligible)
        # What calls of the others have is at the engines that serve them now as well. Once for each change of engines.
        name, seen = self._seen
        if seen is not None and self._eligible_sets.get(name) is seen:
            return
        self._seen = eligible.model, eligible
        # Models of the same engines move together, without a look at these for each: there may be a thousand adapters.
        alike = list({endpoint.models for endpoint in self._endpoints})
        found: dict[tuple[int, ...], frozenset[str]] = {}
        for other, one in self.models.items():
            if one is model or not (one.begun or one.waiters or one.paused):
                continue
            served_by = tuple(number for number, names in enumerate(alike) if other in names)
            engines = found.get(served_by)
            if engines is not None:
                self._move(one, engines)
                continue
            its = self.eligible(other)
            # What calls of one that is not served any more have is where it was.
            one.eligible = None
            if its is not None:
                self._put(one, its)
                found[served_by] = one.engines

    def _put(self, model: "WaitingModel", eligible: EligibleSet) -> None:
        model.eligible = eligible
        # Who gave way is to be looked for, too.
        model.ample = NEVER if model.paused else self._ample(eligible)
        engines = frozenset(engine.instance.id for role in _COUNTED for engine in eligible.up[role])
        self._move(model, engines)

    def _move(self, model: "WaitingModel", engines: frozenset[str]) -> None:
        before, model.engines = model.engines, engines
        there = self._there.get(engines)
        if there is None:
            shared = None if self._lines is None else self._lines.of(engines)
            there = self._there[engines] = CallsThere(shared)
        if there is not model.there:
            left = model.there
            model.moves(there)
            self._left(left, before)

    def _left(self, there: "CallsThere", engines: frozenset[str]) -> None:
        """A model has other engines now, or none."""
        if not there.models and there is self._there.get(engines):
            del self._there[engines]
            if self._lines is not None and there.shared is not None:
                self._lines.forget(there.shared)

    def _ample(self, eligible: EligibleSet) -> Ample:
        if self._lines is not None or self.limits.ttft_seconds is not None:
            # Others are to be asked, or how long it takes.
            return NEVER
        return self._room.ample(eligible)

    def _add(self, name: str) -> "WaitingModel":
        if len(self.models) >= self._forgets_from:
            self._forget()
        model = self.models[name] = WaitingModel(self)
        return model

    def _forget(self) -> None:
        """Forget the models without calls that no engine has."""
        served = set(self._endpoints.models())
        for name, model in list(self.models.items()):
            if name not in served and not (model.begun or model.waiters or model.paused):
                del self.models[name]
                model.there.models -= 1
                self._left(model.there, model.engines)
        # As many again come before the next time, so it costs each little.
        self._forgets_from = max(FORGETS_FROM, 2 * len(self.models))

    def eligible(self, name: str | None) -> EligibleSet | None:
        try:
            return self._endpoints.eligible(name)
        except GatewayError:
            return None

    def _overtakes(self, place: LinePlace, model: "WaitingModel") -> bool:
        """Whether a call is more urgent than those that gave way."""
        giving = self.giving_way
        return giving is None or not giving.goes_before(place.urgency, model)

    def _lets_in(self, name: str, model: "WaitingModel") -> str:
        return LINE if self.giving_way is None else self.giving_way.lets_in(name, model)

    def _begin_next(self, name: str, model: "WaitingModel") -> None:
        eligible, now = self.eligible(name), monotonic()
        soonest = now if eligible is None else self._room.soonest(eligible, now)
        place = model.line.next(soonest, model.pace.tokens_per_second)
        waiter, since = model.waiters.pop(place)
        self.waits_no_more(model)
        pace, others_wait = model.pace, bool(model.line)
        if waiter.cancelled():
            # Its client has left, and it is about to learn that.
            if not others_wait:
                pace.rest()
            return
        model.had_turn()
        longest = min(self.limits.wait_seconds, self.limits.target_seconds)
        # What it waits is cut short where calls end for it.
        counts = not place.made_way and pace.keeps_a_second_from_waiting(longest)
        waited = now - since if counts else None
        pace.began(now, others_wait=others_wait, tokens=place.tokens, waited=waited)
        waiter.set_result(None)

    def _make_place(self, key: str, model: "WaitingModel", place: LinePlace) -> None:
        weakest = self._who_leaves(key, model, place)
        if weakest is not None:
            expected = model.pace.wait(model.line.ahead(weakest), monotonic())
            self._turn_away(model, weakest, self._refusal(key, GAVE_WAY, expected))

    def _who_leaves(self, key: str, model: "WaitingModel", place: LinePlace) -> LinePlace | None:
        """The call that leaves a full line to a newcomer; None while it is not full. Raise Overloaded if the newcomer has no place."""
        before, longest = model.line.ahead(place), self.limits.wait_seconds
        beyond = model.pace.beyond(before, monotonic(), longest)
        if beyond and not self._gives_way_to(place):
            raise self._refusal(key, HOPELESS, beyond)
        if len(model.line) < self.limits.waiting:
            return None
        weakest = model.line.gives_way(place)
        if weakest is place:
            raise self._refusal(key, FULL, model.pace.wait(0, monotonic()))
        return weakest

    def _gives_way_to(self, place: LinePlace) -> bool:
        """Whether calls run that may: then the pace of the others says nothing."""
        giving = self.giving_way
        return giving is not None and giving.has_less_urgent(place.urgency)

    def _turn_away(self, model: "WaitingModel", place: LinePlace, error: Overloaded) -> None:
        waiter, _ = model.waiters[place]
        self._left_line(model, place)
        if not waiter.cancelled():
            waiter.set_exception(error)

    def _refusal(self, key: str, why: str, seconds: float | None) -> Overloaded:
        self.refused[key, why] += 1
        advice = min(max(1, math.ceil(seconds or 0)), LONGEST_ADVICE_SECONDS)
        return Overloaded(
            "there are more calls than can be served in time; try again later",
            retry_after_seconds=advice,
        )

    def wind(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._tick_seconds, self._tick)

    def _tick(self) -> None:
        self._timer = None
        try:
            self.look()
            now = monotonic()
            if now >= self._next_check:
                self._next_check = now + TICK_SECONDS
                self._turn_away_late(now - self.limits.wait_seconds)
                if self.giving_way is not None:
                    self.giving_way.consider()
        finally:
            # Whatever went wrong: else no look would follow.
            if self.line_length:
                self.wind()

    def _turn_away_late(self, earliest: float) -> None:
        """Those who have waited since before that."""
        left = MOST_AT_ONCE
        for key, model in self.models.items():
            # In the order in which they came.
            late = takewhile(lambda waits: waits[1][1] < earliest, model.waiters.items())
            for place, _ in list(islice(late, left)):
                left -= 1
                expected = model.pace.wait(len(model.line), monotonic())
                self._turn_away(model, place, self._refusal(key, TOO_LONG, expected))
        if not left:
            asyncio.get_running_loop().call_soon(self._turn_away_late, earliest)


class CallsThere:
    """Calls let in to one set of engines, by whatever names of models: limits are of engines.

    Attributes:
        begun, beginning: As of a WaitingModel; of all of them.
        waiting: Calls that wait for these engines, those that gave way included.
        since: When one of these last began, or when the first of them came; monotonic ns.
        models: How many have these engines.
        shared: The same of other processes; None where there are none, or nothing can be told of it.
    """

    __slots__ = ("beginning", "begun", "models", "shared", "since", "waiting")

    def __init__(self, shared: SharedLine | None = None) -> None:
        self.begun = self.beginning = self.waiting = self.since = self.models = 0
        self.shared = shared

    def tell(self) -> None:
        """Other processes, of what has changed."""
        if self.shared is not None:
            self.shared.tell(self.begun, self.beginning, self.since if self.waiting else None)


class WaitingModel:
    """The calls of one model.

    Attributes:
        begun: Let in, and not ended.
        beginning: Of these, who have not yet been able to reserve an engine.
        there: The calls of all models that the same engines serve.
        engines: Their ids.
        since: When one of the line last began, or when it began to be one; monotonic ns.
        waiters: Who waits -> what it waits for, and since when.
        paused: The same of calls that gave way, each with a name of its own.
        eligible, ample: Who serves it, and where they have room for sure.
        at_once: Of all calls that need not wait.
    """

    __slots__ = (
        "ample",
        "at_once",
        "beginning",
        "begun",
        "eligible",
        "engines",
        "line",
        "pace",
        "paused",
        "since",
        "there",
        "waiters",
    )  # fmt: skip

    def __init__(self, gate: Gate) -> None:
        self.line = Line(gate.limits.late_share)
        self.pace = Pace()
        self.begun = 0
        self.beginning = 0
        self.there = CallsThere()
        self.engines: frozenset[str] = frozenset()
        self.since = 0
        self.waiters: dict[LinePlace, tuple[asyncio.Future[None], float]] = {}
        self.paused: dict[object, asyncio.Future[None]] = {}
        self.eligible: EligibleSet | None = None
        self.ample = NEVER
        self.at_once = FreeTurn(gate, self)

    def began(self, *, beginning: bool = False) -> None:
        """A call was let in; `beginning`: and cannot reserve an engine at once."""
        self.begun += 1
        self.there.begun += 1
        if beginning:
            self.beginning += 1
            self.there.beginning += 1

    def had_turn(self) -> None:
        """One that waited was let in."""
        self.began(beginning=True)
        self.since = self.there.since = monotonic_ns()
        self.there.tell()

    def pauses(self, name: object, waiter: "asyncio.Future[None]") -> None:
        """A call of that name has given way."""
        self.paused[name] = waiter
        self.ample = NEVER

    def ends_pause(self, name: object) -> "asyncio.Future[None] | None":
        """What it waited for; None where it is let in."""
        waiter = self.paused.pop(name, None)
        if not self.paused:
            # Where they have room for sure is found anew.
            self.eligible = None
        return waiter

    def moves(self, there: CallsThere) -> None:
        """To other engines, with all calls."""
        waiting = len(self.waiters) + len(self.paused)
        if waiting and not there.waiting:
            there.since = self.there.since
        for calls, sign in (self.there, -1), (there, 1):
            calls.begun += sign * self.begun
            calls.beginning += sign * self.beginning
            calls.waiting += sign * waiting
            calls.models += sign
            calls.tell()
        self.there = there


class FreeTurn:
    """Turn of a call that need not wait, as a block; nothing may be awaited before it is entered.

    Attributes:
        waits: Others are before it: in the block, `come` is to be awaited first.
        seconds: How long it has waited.
        made_way: How many calls gave way to it.
        pausing: Of one that may give way; None of any other.
    """

    __slots__ = ("_gate", "_model", "made_way", "pausing", "seconds", "waits")

    def __init__(self, gate: Gate, model: WaitingModel) -> None:
        self._gate, self._model = gate, model
        self.waits = False
        self.seconds = 0.0
        self.made_way = 0
        self.pausing: Pausing | None = None

    @property
    def model(self) -> WaitingModel:
        return self._model

    async def come(self) -> None:
        """Returns when the call may begin. Raises Overloaded."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._gate.ended(self._model)


def _seconds_late(
    eligible: EligibleSet, tokens: int, longest: float, role: Role | None = None
) -> float:
    """By how much later than that a prompt would be read, as far as that is known."""
    expected = seconds_to_read(eligible, tokens, role)
    return 0.0 if expected is None else max(0.0, expected - longest)


def _last_turn(waiting: tuple[str, WaitingModel]) -> int:
    return waiting[1].since


class WaitingTurn(FreeTurn):
    """One call's."""

    __slots__ = ("_place", "_waiter")

    def __init__(
        self, gate: Gate, model: WaitingModel, place: LinePlace, waiter: "asyncio.Future[None]"
    ) -> None:
        super().__init__(gate, model)
        self._place, self._waiter = place, waiter
        self.waits = True

    async def come(self) -> None:
        since = monotonic()
        await self._waiter
        self.waits = False
        self._gate.begins(self._model)
        self.seconds = monotonic() - since
        self.made_way = self._place.made_way

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.waits:
            waiter = self._waiter
            self._gate._left_line(self._model, self._place)
            if not waiter.done() or waiter.cancelled() or waiter.exception() is not None:
                return
            # It was let in, and left in the same moment.
            self._gate.begins(self._model)
        self._gate.ended(self._model)


NO_TURN: Final = nullcontext()
"""Of a call that waits for no other."""
