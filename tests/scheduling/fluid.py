"""Engines of one kind as vessels: work flows in evenly, and out as fast as they can.

    prefill   a queue of seconds; every engine takes one second of it in a second
    decode    tokens to be made; a step is longer the more answers there are

Nothing takes real time, and what is drawn is drawn from a seed.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, replace

from pdgate.protocols.instance import Role
from pdgate.scheduling.pressure import FULL, Pressure
from pdgate.scheduling.roles import Engine, Roles, Turn

TTFT_SECONDS, TPOT_SECONDS = 2.0, 0.05
STEP_SECONDS, PER_ANSWER = 0.01, 0.001
DRAIN_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Flow:
    """
    Attributes:
        reading: Seconds of prefill that come each second: as many engines are kept busy.
        tokens: That are to be made each second.
    """

    reading: float
    tokens: float


class Fluid:
    """
    Attributes:
        turns: (when, turn), the first of each engine left out.
        late: Seconds in which a side was beyond its target.
    """

    def __init__(
        self,
        engines: int,
        flow: Callable[[float], Flow],
        *,
        noise: float = 0.0,
        stay: float = 30.0,
        fixed: bool = False,
    ) -> None:
        """`fixed`: everybody stays on its first side."""
        self.roles = Roles(stay)
        self._fixed = fixed
        self.turns: list[tuple[float, Turn]] = []
        self.late = 0.0
        self._flow = flow
        self._noise = noise
        self._random = random.Random(11)
        self._queue_seconds = 0.0
        self._answers = 0.0
        self._turned: dict[str, float] = {}
        self._engines = [Engine(f"e{n}", "g", None, True) for n in range(engines)]

    def side(self, side: Role) -> int:
        return sum(one.side is side for one in self._engines)

    def run(self, seconds: int) -> "Fluid":
        for now in range(seconds):
            self._second(now)
        return self

    def _second(self, now: float) -> None:
        flow = self._flow(now)
        working = [one for one in self._engines if not one.turning]
        readers = sum(one.side is not Role.DECODE for one in working)
        makers = sum(one.side is not Role.PREFILL for one in working)
        self._queue_seconds = max(0.0, self._queue_seconds + flow.reading - readers)
        # As many answers as it takes to make that many tokens, or ever more.
        batch = self._answers / max(1, makers)
        made = makers * batch / (STEP_SECONDS + PER_ANSWER * batch)
        self._answers = max(1.0, self._answers + (flow.tokens - made) / 200)
        wait = self._queue_seconds / max(1, readers) + min(1.0, flow.reading / max(1, readers)) / 4
        step = STEP_SECONDS + PER_ANSWER * batch
        self.late += wait > TTFT_SECONDS or step > TPOT_SECONDS
        of = {
            Role.PREFILL: Pressure(
                max(min(1.0, flow.reading / max(1, readers)) / FULL, wait / TTFT_SECONDS)
            ),
            Role.DECODE: Pressure(
                0.0, STEP_SECONDS / TPOT_SECONDS, (step - STEP_SECONDS) / TPOT_SECONDS
            ),
        }
        self._engines = [
            replace(
                one,
                turning=now < self._turned.get(one.id, -1.0),
                pressure=self._drawn(of[one.side]) if one.side else Pressure(),
            )
            for one in self._engines
        ]
        self.roles.see(self._engines, now)
        if now % 5 == 0:
            for turn in self.roles.decide(self._engines, now):
                self._take(turn, now)

    def _drawn(self, pressure: Pressure) -> Pressure:
        factor = max(0.0, self._random.gauss(1, self._noise))
        return Pressure(pressure.use * factor, pressure.base, pressure.load * factor)

    def _take(self, turn: Turn, now: float) -> None:
        if self._fixed and not turn.first:
            return
        if not turn.first:
            self.turns.append((now, turn))
            self._turned[turn.id] = now + DRAIN_SECONDS
        self._engines = [
            replace(one, side=turn.to, since=now) if one.id == turn.id else one
            for one in self._engines
        ]
