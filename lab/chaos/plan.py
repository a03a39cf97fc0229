"""Fault plan: which requests, or connections, meet which fault.

    Plan((Rule(Cut(2000), every=3), Rule(Delay(0.5), chance=0.01)), seed=7)

Pure, and a function of the number alone: the same seed gives the same faults, whatever the
order in which answers come. The first rule that fits a number is the one that counts.
"""

from dataclasses import dataclass
from random import Random
from typing import Literal

from pdgate.lab.chaos.fault import Fault

Per = Literal["request", "connection"]


@dataclass(frozen=True, slots=True)
class Rule:
    """A fault and when it comes.

    Attributes:
        every: At each n-th number; 1 is all of them.
        chance: Of those, this share, 0..1, drawn with the plan's seed.
        first: Not before this number; numbers begin at 1.
        last: Not after it; None for ever.
    """

    fault: Fault
    every: int = 1
    chance: float = 1.0
    first: int = 1
    last: int | None = None

    def __post_init__(self) -> None:
        """Raises ValueError for what can never happen."""
        if self.every < 1:
            raise ValueError(f"every must be 1 or more, not {self.every}")
        if not 0 < self.chance <= 1:
            raise ValueError(f"chance is a share above 0 and up to 1, not {self.chance}")
        if self.first < 1:
            raise ValueError(f"first is 1 or more, not {self.first}")
        if self.last is not None and self.last < self.first:
            raise ValueError(f"last {self.last} comes before first {self.first}")

    def counts(self, number: int) -> bool:
        """Whether its turn has come; `chance` is not asked."""
        in_time = number >= self.first and (self.last is None or number <= self.last)
        return in_time and (number - self.first + 1) % self.every == 0


@dataclass(frozen=True, slots=True)
class Plan:
    """The rules in force.

    Attributes:
        only: Only requests that begin so are counted and disturbed; b"POST " spares health
            checks, b"" spares nothing.
        per: What is counted. Gateways keep connections, so calls are requests.
    """

    rules: tuple[Rule, ...] = ()
    seed: int = 0
    only: bytes = b"POST "
    per: Per = "request"

    def choose(self, number: int) -> Fault | None:
        """What the request, or connection, with this number meets."""
        for index, rule in enumerate(self.rules):
            if rule.counts(number) and self._drawn(index, number) < rule.chance:
                return rule.fault
        return None

    def draw(self, number: int, below: int) -> int:
        """A number in range(below) for a fault that needs one."""
        return Random(f"{self.seed}/{number}").randrange(below)

    def _drawn(self, index: int, number: int) -> float:
        # Text seeds are hashed the same way in every process and release of Python 3.
        return Random(f"{self.seed}/{index}/{number}").random()
