"""Gate where calls wait for their turn: gateway/admission/gate.py without its event loop.

Whether there is room, whose turn it is and how long it will take are the real `Room`, `Line` and
`Pace`. Without limits every call passes.
"""

from collections.abc import Callable
from functools import partial
from typing import Final

from pdgate.lab.simulator.agenda import Agenda
from pdgate.scheduling.admission import Limits, Line, LinePlace, Pace, Room
from pdgate.scheduling.endpoints import Endpoints

TICK_SECONDS: Final = 0.25


class SimulatedGate:
    """
    Attributes:
        refused: Calls that were turned away.
    """

    def __init__(self, limits: Limits, endpoints: Endpoints, agenda: Agenda) -> None:
        self.refused = 0
        self._limits = limits
        self._room = Room(limits)
        self._endpoints = endpoints
        self._agenda = agenda
        self._line = Line(limits.late_share)
        self._pace = Pace()
        self._waiting: dict[LinePlace, tuple[Callable[[], None], Callable[[], None]]] = {}
        self._begun = 0
        self._ticks = False

    def come(self, tokens: int, begin: Callable[[], None], refuse: Callable[[], None]) -> None:
        """One of the two is called, now or later."""
        if not self._limits.any or (not self._line and self._has_room()):
            self._begun += 1
            begin()
            return
        if self._is_hopeless():
            self._refuse(refuse)
            return
        due = self._room.due(self._endpoints.eligible(None), tokens, self._agenda.now)
        place = LinePlace(tokens=tokens, due=due)
        self._line.join(place)
        self._waiting[place] = begin, refuse
        self._agenda.at(
            self._agenda.now + self._limits.wait_seconds, partial(self._waited_too_long, place)
        )
        self._tick_later()

    def ended(self) -> None:
        """A call that had begun."""
        self._begun -= 1
        self.look()

    def look(self) -> None:
        """There may be room now."""
        while self._line and self._has_room():
            soonest = self._room.soonest(self._endpoints.eligible(None), self._agenda.now)
            begin, _ = self._waiting.pop(self._line.next(soonest))
            self._pace.began(self._agenda.now, others_wait=bool(self._line))
            self._begun += 1
            begin()

    def _has_room(self) -> bool:
        return self._room.for_one_more(self._endpoints.eligible(None), self._begun, 0)

    def _is_hopeless(self) -> bool:
        expected = self._pace.wait(self._line.ahead(), self._agenda.now)
        too_long = expected is not None and expected > self._limits.wait_seconds
        # All are equally urgent and of one tenant, so no call gives way to a newcomer.
        return too_long or len(self._line) >= self._limits.waiting

    def _waited_too_long(self, place: LinePlace) -> None:
        if place in self._waiting:
            _, refuse = self._waiting.pop(place)
            self._line.leave(place)
            self._refuse(refuse)

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
        if self._line:
            self._tick_later()
