"""Who of those that are up may have this call, while some are only on their way back.

On trial: one call at a time. Returned from an outage: a share of the calls that grows evenly
from LEAST to all, as caches are cold and the others' load would come down on it at once. The
share is drawn, so it holds under every policy. If that leaves nobody, all may.
"""

from collections.abc import Callable, Sequence
from typing import Final

from pdgate.scheduling.candidate import Candidate
from pdgate.scheduling.health.breaker import State

LEAST: Final = 0.1


def share(seconds: float, slow_start_seconds: float) -> float:
    """Of the calls that it would get otherwise, so many seconds after its return."""
    return max(LEAST, min(1.0, seconds / slow_start_seconds)) if slow_start_seconds else 1.0


def admitted(
    candidates: Sequence[Candidate],
    now: float,
    slow_start_seconds: float,
    draw: Callable[[], float],
) -> Sequence[Candidate]:
    """`draw` gives numbers from 0 to below 1."""

    def may(candidate: Candidate) -> bool:
        if candidate.breaker.state is State.TRIAL:
            return not candidate.trials
        since = candidate.returned
        return since is None or draw() < share(now - since, slow_start_seconds)

    return [c for c in candidates if may(c)] or candidates
