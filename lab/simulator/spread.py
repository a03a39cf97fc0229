"""Percentiles of what was measured, or simulated."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Spread:
    """Percentiles, in seconds; all 0 of nothing."""

    p50: float = 0.0
    p90: float = 0.0
    p99: float = 0.0

    @classmethod
    def of(cls, values: Iterable[float]) -> "Spread":
        ordered = sorted(values)
        if not ordered:
            return cls()
        return cls(*(percentile(ordered, share) for share in (0.5, 0.9, 0.99)))

    def in_seconds(self) -> str:
        return " ".join(f"{value:.2f}" for value in (self.p50, self.p90, self.p99))

    def in_milliseconds(self) -> str:
        return " ".join(f"{value * 1000:.1f}" for value in (self.p50, self.p90, self.p99))


def some(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def percentile(ordered: Sequence[float], share: float) -> float:
    """The one of sorted values that so many are not above (nearest rank)."""
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
