"""The most load under which a policy keeps its promises to nearly all callers."""

from collections.abc import Callable
from typing import Final

GOOD: Final = 0.9
"""Share of calls within the targets."""

LOWEST, HIGHEST = 1.0, 16.0
PRECISION: Final = 0.05
"""Of the load found."""


def capacity(goodput: Callable[[float], float]) -> float:
    """The load, in times of the trace's pace, above which fewer than GOOD are served in time.

    Taken for falling with the load. LOWEST if it is too little even there.
    """
    low, high = LOWEST, 2 * LOWEST
    while goodput(high) >= GOOD:
        low, high = high, 2 * high
        if high > HIGHEST:
            return low
    if low == LOWEST and goodput(low) < GOOD:
        return LOWEST
    while high - low > PRECISION * low:
        middle = (low + high) / 2
        if goodput(middle) >= GOOD:
            low = middle
        else:
            high = middle
    return low
