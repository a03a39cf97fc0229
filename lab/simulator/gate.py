"""Gate where calls wait for their turn: gateway/admission/gate.py without its event loop.

Whether there is room, whose turn it is, how long it will take and who gives way are the real `Room`, `Line`, `Pace`
and `who_gives_way`. Without limits every call passes.
"""

from collections.abc import Callable
from functools import partial
from typing import Final

from pdgate.lab.simulator.agenda import Agenda
from pdgate.lab.simulator.giving_way import (
    PAUSE_SECONDS,
    PausableJourney,
    SimulatedGivingWay,
)
from pdgate.protocols.call import Call
from pdgate.protocols.instance import DECODE
from pdgate.scheduling.admission import Limits, Line, LinePlace, Pace, Room
from pdgate.scheduling.endpoints import Endpoints
from pdgate.scheduling.scheduler import Scheduler

TICK_SECONDS: Final = 0.25


class SimulatedGate:
    """
    Attributes:
        refused: Calls that were turned away.
    """

    def __init__(
        self,
        limits: Limits,
        endpoints: Endpoints,
        agenda: Agenda,
        scheduler: Scheduler,
        staged: bool = False,
    ) -> None:
        """`staged`: decode is chosen when prefill has answered."""
        self.refused = 0
        self._limits = limits
        self._room = Room(limits, staged)
        self._endpoints = endpoints
        self._agenda = agenda
        self._scheduler = scheduler
        self._line = Line(limits.late_share)
        self._pace = Pace()
        self._waiting: dict[LinePlace, tuple[Callable[[], None], Callable[[], None]]] = {}
        self._since: dict[LinePlace, float] = {}
        self._begun = 0
        self._ticks = self._looking = False
        self._giving = SimulatedGivingWay(
            limits, agenda, lambda: endpoints.eligible(None), self._gave_way
        )

    def come(
        self,
        tokens: int,
        journey: PausableJourney,
        begin: Callable[[], None],
        refuse: Callable[[], None],
    ) -> None:
        """One of the two is called, now or later."""
        if not self._limits.any or (not self._line and self._has_room()):
            self._begin(journey, begin)
            return
        if self._has_room_at_decode(journey.call):
            self._begin(journey, begin)
            return
        now, cached = self._agenda.now, self._scheduler.cached(journey.call)
        due, seconds = self._room.due(self._endpoints.eligible(None), tokens, now, cached)
        place = LinePlace(journey.urgency, "", tokens, due, seconds=seconds)
        if self._is_hopeless(place):
            self._refuse(refuse)
            return
        if len(self._line) >= self._limits.waiting:
            weakest = self._line.gives_way(place)
            if weakest is place:
                self._refuse(refuse)
                return
            self._turn_away(weakest)
        self._line.join(place)
        self._waiting[place] = partial(self._begin, journey, begin), refuse
        self._since[place] = self._agenda.now
        self._agenda.at(
            self._agenda.now + self._limits.wait_seconds, partial(self._waited_too_long, place)
        )
        self._tick_later()
        self._consider()

    def ended(self, journey: PausableJourney) -> None:
        """A call that had begun."""
        self._begun -= 1
        self._giving.ended(journey)
        self.look()

    def look(self) -> None:
        """Let calls in for which there is room by now."""
        if self._looking:
            # One that begins has let go of an engine (it is not split), which the next turn of the loop sees.
            return
        self._looking = True
        while (self._line or self._giving.paused) and self._has_room():
            again = self._giving.lets_in(self._line)
            if again is not None:
                self._begun += 1
                again.go_on()
                continue
            soonest = self._room.soonest(self._endpoints.eligible(None), self._agenda.now)
            place = self._line.next(soonest, self._pace.tokens_per_second)
            begin, _ = self._waiting.pop(place)
            now, others_wait = self._agenda.now, bool(self._line)
            waited = now - self._since.pop(place)
            longest = min(self._limits.wait_seconds, self._limits.target_seconds)
            counts = not place.made_way and self._pace.keeps_a_second_from_waiting(longest)
            self._pace.began(
                now,
                others_wait=others_wait,
                tokens=place.tokens,
                waited=waited if counts else None,
            )
            begin()
        self._looking = False

    def _begin(self, journey: PausableJourney, begin: Callable[[], None]) -> None:
        self._begun += 1
        self._giving.began(journey)
        begin()

    def _gave_way(self) -> None:
        self._begun -= 1
        self._tick_later()
        # When all that are to end have.
        self._agenda.at(self._agenda.now, self._after)

    def _after(self) -> None:
        self.look()
        self._consider()

    def _consider(self) -> None:
        if self._giving.consider(self._line, self._pace, self._since, self._begun):
            self._agenda.at(self._agenda.now + PAUSE_SECONDS, self._consider)

    def _has_room(self) -> bool:
        return self._room.for_one_more(self._endpoints.eligible(None), self._begun, 0)

    def _has_room_at_decode(self, call: Call) -> bool:
        """Whether the call would not be split, and so need not wait for prefill."""
        eligible = self._endpoints.eligible(None)
        prefill = self._room.least_busy_reader(eligible) if eligible.disaggregated else None
        if prefill is None or not self._scheduler.stays(call, prefill):
            return False
        return self._room.for_one_alone(eligible, DECODE, self._begun, 0)

    def _is_hopeless(self, place: LinePlace) -> bool:
        before, longest = self._line.ahead(place), self._limits.wait_seconds
        too_long = self._pace.beyond(before, self._agenda.now, longest) > 0
        return too_long and not self._giving.has_less_urgent(place.urgency)

    def _turn_away(self, place: LinePlace) -> None:
        _, refuse = self._waiting.pop(place)
        del self._since[place]
        self._line.leave(place)
        if not self._line:
            self._pace.rest()
        self._refuse(refuse)

    def _waited_too_long(self, place: LinePlace) -> None:
        if place in self._waiting:
            self._turn_away(place)

    def _refuse(self, refuse: Callable[[], None]) -> None:
        self.refused += 1
        refuse()

    def _tick_later(self) -> None:
        """What engines say of their pages frees places, too."""
        if not self._ticks:
            self._ticks = True
            self._agenda.at(self._agenda.now + TICK_SECONDS, self._tick)

    def _tick(self) -> None:
        self._ticks = False
        self.look()
        self._consider()
        if self._line or self._giving.paused:
            self._tick_later()
