"""Metric family, declared once: name, help, labels, kind, zero values, merging over workers.

    declaration (families.py) --samples--> Samples --> /metrics, the console
                                              '------> the other workers, which merge by its rule

Histograms, and counters unless they say otherwise, are sums of what each worker has counted. Of a
gauge it depends on what it measures, so none can be declared without its rule.
"""

from collections.abc import Callable, Iterable
from enum import StrEnum
from operator import add
from typing import ClassVar

from prometheus_client import Metric

from pdgate.gateway.metrics.histogram import Histogram
from pdgate.scheduling.endpoint import Endpoint

Key = str | tuple[str, ...]
"""The values of a family's labels, in its order; a lone one also without its tuple."""

Zeros = Callable[[Iterable[Endpoint]], Iterable[Key]]
"""Of a fleet: the label values that are shown with 0 before anything has happened."""


class SampleMerge(StrEnum):
    """How a sample that several workers have is one on /metrics.

    SUM: Each worker has a part of the amount.
    MAX: Each worker sees all of it, or one decides for all; the highest is the newest or the worst.
    MIN: Each worker sees for itself, and what one of them lacks is lacking.
    """

    SUM = "sum"
    MAX = "max"
    MIN = "min"

    def of(self, one: float, other: float) -> float:
        return _RULES[self](one, other)


_RULES: dict[SampleMerge, Callable[[float, float], float]] = {
    SampleMerge.SUM: add,
    SampleMerge.MAX: max,
    SampleMerge.MIN: min,
}


class Samples(Metric):
    """The samples of one family at one time, as prometheus_client writes them."""

    def __init__(self, name: str, help_text: str, kind: str, merge: SampleMerge) -> None:
        super().__init__(name, help_text, kind)
        self.merge = merge


Source = Callable[[], Iterable[Samples]]
"""A component's part of /metrics, each time that it is asked for."""


class MetricDeclaration:
    """What all kinds have in common. Compared by identity: a family is declared once."""

    kind: ClassVar[str]

    def __init__(
        self, name: str, help_text: str, labels: tuple[str, ...], merge: SampleMerge
    ) -> None:
        self.name = name
        self.help = help_text
        self.labels = labels
        self.merge = merge

    def empty(self) -> Samples:
        return Samples(self.name, self.help, self.kind, self.merge)

    def labelled(self, key: Key) -> dict[str, str]:
        """Raise ValueError for more or fewer values than the family has labels."""
        values = (key,) if isinstance(key, str) else key
        return dict(zip(self.labels, values, strict=True))


class Gauge(MetricDeclaration):
    kind = "gauge"

    def __init__(
        self, name: str, help_text: str, labels: tuple[str, ...] = (), *, merge: SampleMerge
    ) -> None:
        super().__init__(name, help_text, labels, merge)

    def sample(self, value: float) -> Samples:
        """The only one of a family without labels."""
        return self.samples([((), value)])

    def samples(self, found: Iterable[tuple[Key, float]]) -> Samples:
        made = self.empty()
        for key, value in found:
            made.add_sample(self.name, self.labelled(key), value)
        return made


class Counter(MetricDeclaration):
    """
    Args:
        name: Without the `_total` that it has on /metrics.
        zeros: See zero_values.py; what clients cause begins with its first event.
    """

    kind = "counter"

    def __init__(
        self,
        name: str,
        help_text: str,
        labels: tuple[str, ...] = (),
        *,
        zeros: Zeros = lambda _: (),
        merge: SampleMerge = SampleMerge.SUM,
    ) -> None:
        super().__init__(name, help_text, labels, merge)
        self._zeros = zeros

    def sample(self, value: float) -> Samples:
        """The only one of a family without labels."""
        return self.samples([((), value)])

    def samples(
        self, counts: Iterable[tuple[Key, float]], fleet: Iterable[Endpoint] = ()
    ) -> Samples:
        """Zero values first."""
        made = self.empty()
        name = f"{self.name}_total"
        for key, value in {**dict.fromkeys(self._zeros(fleet), 0.0), **dict(counts)}.items():
            made.add_sample(name, self.labelled(key), value)
        return made


class HistogramFamily(MetricDeclaration):
    """A histogram of seconds."""

    kind = "histogram"

    def __init__(self, name: str, help_text: str, labels: tuple[str, ...]) -> None:
        super().__init__(name, help_text, labels, SampleMerge.SUM)

    def samples(self, found: Iterable[tuple[Key, Histogram]]) -> Samples:
        """What was never observed is left out."""
        made = self.empty()
        for key, histogram in found:
            if not any(histogram.counts):
                continue
            labels = self.labelled(key)
            buckets = histogram.buckets()
            for bound, count in buckets:
                made.add_sample(f"{self.name}_bucket", {**labels, "le": bound}, count)
            made.add_sample(f"{self.name}_count", labels, buckets[-1][1])
            made.add_sample(f"{self.name}_sum", labels, histogram.sum)
        return made
