"""What operators see of the directory: a word on /ready, numbers on /metrics.

waiting    it has not answered since the gateway started
degraded   it does not answer: the engines last known are in use
current    it answers, and what it tells is in use
"""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from pdgate.gateway.discovery.feed import Feed


class Status(Collector):
    def __init__(self, feed: Feed) -> None:
        self._feed = feed

    def as_json(self) -> dict[str, str | int]:
        """Without a reason: /ready is for everybody, and reasons name addresses."""
        return {"state": self.state, "instances": self._instances}

    @property
    def state(self) -> str:
        roster = self._feed.roster
        if not roster.listed:
            return "waiting"
        return "current" if roster.degraded is None else "degraded"

    @property
    def _instances(self) -> int:
        return len(self._feed.roster.in_use) - len(self._feed.unusable)

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
            len(roster.refused) + len(self._feed.unusable),
        )
        yield CounterMetricFamily(
            "pdgate_directory_losses", "How often the directory was lost.", roster.losses
        )
