"""Limits that several processes keep together, each with a line of its own.

    no other has a line       a new call begins while all together are below the limit
    some have                 each worker with a line may have an equal part of the limit; what
                              the parts leave over is for whose last turn is longest ago

So no worker overtakes another worker's line, a worker alone may have the whole limit, and none is
starved where there are fewer places than workers.
"""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class OtherProcesses:
    """What the other processes say of a set of engines.

    Attributes:
        begun, beginning: Their calls, as in `Room.for_one_more`.
        lines: Processes in which calls wait.
        since: When the one of these that waits longest had its last turn, monotonic ns.
    """

    begun: int = 0
    beginning: int = 0
    lines: int = 0
    since: int | None = None


NOBODY: Final = OtherProcesses()
"""There are none."""
NOTHING_SAID: Final = OtherProcesses()
"""There are some, and none has had calls for just these engines."""


def may_have_one_more(limit: int, own: int, others: OtherProcesses, since: int | None) -> bool:
    """Whether a place that is free is ours.

    Args:
        limit: Places of all.
        own: Those that we have.
        since: When our line had its last turn, or began to be one; None for one that has just come
            and joins no line if it may begin.
    """
    if others.since is None or own < limit // (others.lines + 1):
        return True
    return since is not None and since <= others.since
