"""Longest calls of a line that cannot all be in time: those that go last, so that most of the others are.

Of the calls that one engine does one after another, each of which is due at its time, most are in time if they go in the
order in which they are due, and each time that one would be late the longest of those so far goes last (Moore, "An n job, one
machine sequencing algorithm for minimizing the number of late jobs", Management Science 15, 1968). All calls of a
line are due about as long after they have come, so its own order is near enough to that.

How long a call takes is its prompt's tokens at the pace of late, whether prefill or decode is short: what decode has to
attend to are these tokens, too.
"""

from collections.abc import Iterable
from heapq import heappop, heappush
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pdgate.scheduling.admission.line import LinePlace


def longest_of(
    places: Iterable["LinePlace"], begins: float, tokens_per_second: float
) -> frozenset["LinePlace"]:
    """Of calls that wait for their turns in this order, those that are to go last.

    Args:
        begins: When the first of them can begin, monotonic seconds.
        tokens_per_second: Of the prompts of calls that begin.
    """
    now, last = begins, set()
    so_far: list[tuple[int, int, LinePlace]] = []
    for number, place in enumerate(places):
        starts = now
        now += place.tokens / tokens_per_second
        # Of equally long ones the newest goes last.
        heappush(so_far, (-place.tokens, -number, place))
        if starts > place.due:
            _, _, longest = heappop(so_far)
            last.add(longest)
            now -= longest.tokens / tokens_per_second
    return frozenset(last)
