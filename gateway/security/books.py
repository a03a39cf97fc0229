"""What is counted by key. There are as many values of the label as there are keys."""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from pdgate.gateway.metrics.known import KEY_REFUSALS
from pdgate.gateway.security.door import Door


class KeyBooks(Collector):
    def __init__(self, door: Door) -> None:
        self._door = door

    def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
        calls = CounterMetricFamily(
            "pdgate_key_calls", "Calls that were let in, by API key.", labels=("key",)
        )
        running = GaugeMetricFamily(
            "pdgate_key_calls_in_flight",
            "Calls that are being served, by API key.",
            labels=("key",),
        )
        refused = CounterMetricFamily(
            "pdgate_key_calls_refused",
            "Calls that an API key had no right to, or not yet.",
            labels=("key", "reason"),
        )
        for name, holder in self._door.holders.items():
            calls.add_metric((name,), holder.calls)
            running.add_metric((name,), holder.running)
            for reason, count in {**dict.fromkeys(KEY_REFUSALS, 0), **holder.refused}.items():
                refused.add_metric((name, reason), count)
        yield from (calls, running, refused)
