"""Status of the directory: a word on /ready, numbers on /metrics.

waiting    it has not answered since the gateway started
remembered the same, and engines known to an earlier life are in use
degraded   it does not answer: the engines last known are in use
current    it answers, and what it tells is in use
"""

import time
from collections.abc import Callable, Iterator

from pdgate.gateway.discovery.feed import Feed
from pdgate.gateway.metrics import families
from pdgate.gateway.metrics.family import Samples


class DiscoveryStatus:
    def __init__(self, feed: Feed, wall_clock: Callable[[], float] = time.time) -> None:
        self._feed = feed
        self._wall_clock = wall_clock

    def as_json(self) -> dict[str, str | int]:
        """State without a reason: /ready is for strangers, too, and reasons name addresses."""
        said: dict[str, str | int] = {"state": self.state, "instances": self._instances}
        at = self._feed.roster.remembered_at
        if at is not None:
            said["age_seconds"] = round(self._wall_clock() - at)
        if self._unusable:
            said["unusable"] = self._unusable
        return said

    @property
    def state(self) -> str:
        roster = self._feed.roster
        if not roster.listed:
            return "waiting" if roster.remembered_at is None else "remembered"
        return "current" if roster.degraded is None else "degraded"

    @property
    def _instances(self) -> int:
        return len(self._feed.roster.in_use) - len(self._feed.unusable)

    @property
    def _unusable(self) -> int:
        return len(self._feed.roster.refused) + len(self._feed.unusable)

    def collect(self) -> Iterator[Samples]:
        yield families.DIRECTORY_DEGRADED.sample(self.state != "current")
        yield families.DIRECTORY_INSTANCES.sample(self._instances)
        yield families.DIRECTORY_UNUSABLE.sample(self._unusable)
        yield families.DIRECTORY_LOSSES.sample(self._feed.roster.losses)
