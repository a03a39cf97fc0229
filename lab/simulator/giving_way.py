"""Giving way in the simulation: gateway/admission/giving_way.py without its event loop.

Who gives way, and who would be late, are the real decisions. Ended at once as the gateway sees it, a call leaves its
engine's batch with the step that runs, and goes on as a call whose prompt is what it was asked and what it has said.
"""

from collections.abc import Callable, Mapping
from typing import Final, Protocol

from pdgate.lab.simulator.agenda import Agenda
from pdgate.protocols.call import Call
from pdgate.scheduling.admission import Limits, Line, LinePlace, Pace
from pdgate.scheduling.admission.giving_way import (
    RunningCall,
    can_be_in_time,
    looked_at,
    may_give_way,
    raised,
    who_gives_way,
    would_be_late,
)
from pdgate.scheduling.eligible import EligibleSet
from pdgate.scheduling.status import Status

PAUSE_SECONDS: Final = 0.02


class PausableJourney(Protocol):
    """What may be ended, to go on later.

    Attributes:
        call: As it came.
    """

    call: Call

    @property
    def urgency(self) -> int:
        """Urgency as the caller said."""

    def running(self, urgency: int) -> RunningCall | None:
        """Return what can be paused of the call; None while it cannot be."""

    def pause(self) -> None:
        """Its jobs end, and what they held is free."""

    def go_on(self) -> None: ...


class SimulatedGivingWay:
    """
    Attributes:
        paused: Those that wait for another turn -> since when.
    """

    def __init__(
        self,
        limits: Limits,
        agenda: Agenda,
        eligible: Callable[[], EligibleSet],
        left: Callable[[], None],
    ) -> None:
        """`left`: called when one has given way."""
        self._limits = limits
        self._agenda = agenda
        self._eligible = eligible
        self._left = left
        self._running: dict[PausableJourney, None] = {}
        self._freed: dict[str, Status | None] = {}
        self._waited: dict[PausableJourney, float] = {}
        self._next = 0.0
        self._begins = 0
        self.paused: dict[PausableJourney, float] = {}

    def began(self, journey: PausableJourney) -> None:
        if self._limits.give_way and may_give_way(journey.urgency):
            self._running[journey] = None

    def has_less_urgent(self, urgency: int) -> bool:
        """Whether such calls run."""
        return any(journey.urgency > urgency for journey in self._running)

    def ended(self, journey: PausableJourney) -> None:
        self._running.pop(journey, None)
        self._waited.pop(journey, None)

    def consider(
        self, line: Line, pace: Pace, waiting: Mapping[LinePlace, float], begun: int
    ) -> bool:
        """Whether more are to be looked at, soon. `waiting`: since when."""
        now, limits = self._agenda.now, self._limits
        if not self._running or not line or now < self._next:
            return False
        self._next = now + PAUSE_SECONDS
        urgency = line.most_urgent()
        place = next(one for one in waiting if one.urgency == urgency)
        eligible, expected = self._eligible(), pace.wait(0, now)
        if not would_be_late(limits, eligible, place.tokens, now - waiting[place], expected):
            return False
        there = [one for one in self._running if one.urgency > urgency]
        # As they are in the gateway: by what callers have said.
        there.sort(key=lambda one: -one.urgency)
        begins = self._begins
        some, following = looked_at([there], begins)
        low = {}
        for journey in some:
            its = self._urgency(journey)
            one = journey.running(its) if its > urgency else None
            if one is not None:
                low[one] = journey
        in_time = can_be_in_time(limits, eligible, place.tokens, now - waiting[place])
        chosen = who_gives_way(
            limits, eligible, urgency, begun, list(low), freed=self._freed, in_time=in_time
        )
        place.made_way += len(chosen)
        self._begins = 0 if chosen else following
        if chosen:
            self._next = now
        for one in chosen:
            self._pause(low[one], one, eligible)
        return self._begins > begins

    def lets_in(self, line: Line) -> PausableJourney | None:
        """The one that has the place that is free, if one of them has."""
        first = min(self.paused, key=self._urgency, default=None)
        if first is None or (line and line.most_urgent() < self._urgency(first)):
            return None
        self._waited[first] = self._waited.get(first, 0.0) + self._agenda.now - self.paused[first]
        del self.paused[first]
        self._running[first] = None
        return first

    def _pause(self, journey: PausableJourney, one: RunningCall, eligible: EligibleSet) -> None:
        for engines in eligible.up.values():
            for engine in engines:
                if engine.instance.id == one.answering:
                    self._freed[one.answering] = engine.status
        del self._running[journey]
        # Only then does it wait: what it frees lets others in.
        journey.pause()
        self.paused[journey] = self._agenda.now
        self._left()

    def _urgency(self, journey: PausableJourney) -> int:
        since = self.paused.get(journey)
        waits = 0.0 if since is None else self._agenda.now - since
        return raised(journey.urgency, self._waited.get(journey, 0.0) + waits)
