"""What operators see of the directory: a word on /ready, numbers on /metrics.

waiting    it has not answered since the gateway started
remembered the same, and engines known to an earlier life are in use
degraded   it does not answer: the engines last known are in use
current    it answers, and what it tells is in use
"""

import time
from collections.abc import Callable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from pdgate.gateway.discovery.feed import Feed


class Status(Collector):
    def __init__(self, feed: Feed, wall_clock: Callable[[], float] = time.time) -> None:
        self._feed = feed
        self._wall_clock = wall_clock

    def as_json(self) -> dict[str, str | int]:
        """Without a reason: /ready is for everybody, and reasons name addresses."""
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

    def collect(self) -> Iterator[GaugeMetricFamily | CounterMetricFamily]:
        roster = self._feed.roster
        yield GaugeMetricFamily(
            "pdgate_directory_degraded",
            "1 while the directory does not answer.",
            float(self.state != "current"),
        )
        yield GaugeMetricFamily(
            "pdgate_directory_instances",
            "Engines that the directory gave, those in doubt after an outage included.",
            self._instances,
        )
        yield GaugeMetricFamily(
            "pdgate_directory_unusable",
            "Entries of the directory that cannot be used.",
            self._unusable,
        )
        yield CounterMetricFamily(
            "pdgate_directory_losses", "How often the directory was lost.", roster.losses
        )
