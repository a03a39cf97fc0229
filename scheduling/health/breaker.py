"""Circuit breaker: when calls are kept from an engine in which they fail, and when they may return.

           many failures                       seen well, retry_seconds later
    CLOSED --------------> OPEN (no calls) ------------------------> TRIAL (one call at a time)
      ^                     ^                                          |  |
      |                     '------------- the call failed ------------'  |
      '---------------------------- the call ended well ------------------'

Many are `failures` in a row, or HALF of the last WINDOW legs. Times are monotonic seconds and
come as arguments. There is no time that grows with each failure: one call per look is the
price of an engine that stays sick, and one that heals is back after one look.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Final

from pdgate.protocols.members import plain_members

WINDOW: Final = 20
"""Legs that are remembered."""

HALF: Final = WINDOW // 2

_REMEMBERED: Final = (1 << WINDOW) - 1


@plain_members
class BreakerState(Enum):
    CLOSED = "closed"
    OPEN = "open"
    TRIAL = "trial"


TRIAL: Final = BreakerState.TRIAL
"""For what is done with every call (protocols/members.py)."""


@dataclass(frozen=True, slots=True)
class BreakerLimits:
    """
    Attributes:
        failures: In a row, after which no more calls are sent; 0 to send them always.
        retry_seconds: At least so long.
        slow_start_seconds: How long the share of an instance that returns takes to be whole.
    """

    failures: int = 3
    retry_seconds: float = 0.5
    slow_start_seconds: float = 5.0


class Breaker:
    """Circuit breaker of one engine. Each method tells whether the state has changed.

    Attributes:
        latest: One bit for each of the last legs, the latest lowest; set if it failed.
    """

    __slots__ = ("_opened", "latest", "state")

    def __init__(self) -> None:
        self.state = BreakerState.CLOSED
        self.latest = 0
        self._opened = 0.0

    def worked(self) -> bool:
        """A leg ended well; changes nothing while it is closed and no leg of `latest` has failed."""
        if self.state is TRIAL:
            self.latest = 0
            self.state = BreakerState.CLOSED
            return True
        self.latest = self.latest << 1 & _REMEMBERED
        return False

    def failed(self, now: float, limits: BreakerLimits) -> bool:
        """A leg failed, and it was the engine's fault."""
        self.latest = (self.latest << 1 | 1) & _REMEMBERED
        if self.state is BreakerState.OPEN or (
            self.state is BreakerState.CLOSED and not self._many(limits)
        ):
            return False
        self.state, self._opened = BreakerState.OPEN, now
        return True

    def open(self, now: float) -> None:
        """Something else than legs has shown that calls fail there."""
        self.state, self._opened = BreakerState.OPEN, now

    def seen_well(self, now: float, limits: BreakerLimits) -> bool:
        """The engine says itself that it is well."""
        if self.state is not BreakerState.OPEN or now - self._opened < limits.retry_seconds:
            return False
        self.state = BreakerState.TRIAL
        return True

    def excuse(self) -> bool:
        """The latest failure was the call's fault after all: others failed of it as well."""
        self.latest &= self.latest - 1
        if self.state is not BreakerState.OPEN:
            return False
        self.state = BreakerState.TRIAL
        return True

    def _many(self, limits: BreakerLimits) -> bool:
        if not limits.failures:
            return False
        row = (1 << limits.failures) - 1
        return self.latest & row == row or self.latest.bit_count() >= HALF
