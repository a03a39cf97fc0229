"""The lines of waiting calls of all workers, for each set of engines: ours written, the others' read.

Limits are of engines, so calls count there by whatever names of models they came, and take turns.

begun, beginning   calls, as in scheduling/admission/room.py
since              when its turn was last; 0 where no call waits
looked             when it looked last whether one may begin; both in monotonic ns, which are the
                   same in all processes of a host
"""

from collections.abc import Callable, Collection
from time import monotonic_ns
from typing import Final

from pdgate.gateway.sync.workers.neighbourhood import Neighbourhood
from pdgate.gateway.sync.workers.table import key_of
from pdgate.scheduling.admission.others import NOTHING_SAID, OtherProcesses

ENGINES: Final = "engines"
HANGS_NS: Final = 1_000_000_000
"""A worker whose calls wait or begin, and that has not looked for so long, must not hold up the others."""


class SharedLines:
    """
    Attributes:
        take_in: Brings the accounts of engines up to date.
    """

    def __init__(self, neighbourhood: Neighbourhood, take_in: Callable[[], None]) -> None:
        self.take_in = take_in
        self._neighbourhood = neighbourhood

    def of(self, engines: Collection[str]) -> "SharedLine | None":
        """Line of a set of engines, by their ids; None where no more can be shared."""
        key = key_of(ENGINES, " ".join(sorted(engines)))
        told = self._neighbourhood.give(key)
        return None if told is None else SharedLine(self._neighbourhood, key, told)

    def forget(self, line: "SharedLine") -> None:
        """Nothing is to be told of it any more."""
        self._neighbourhood.take_back(line.key)


class SharedLine:
    """Calls at one set of engines, and those that wait for it, in all workers."""

    __slots__ = ("_edition", "_neighbourhood", "_theirs", "_told", "key")

    def __init__(self, neighbourhood: Neighbourhood, key: int, told: memoryview) -> None:
        self._neighbourhood = neighbourhood
        self.key = key
        self._told = told
        self._edition = -1
        self._theirs: list[memoryview] = []

    def tell(self, begun: int, beginning: int, since: int | None) -> None:
        """`since`: None where no call waits."""
        told = self._told
        told[0] = begun
        told[1] = beginning
        told[2] = since or 0

    def others(self) -> OtherProcesses:
        """What other processes have, for the decision whether a call may begin."""
        now = self._told[3] = monotonic_ns()
        edition = self._neighbourhood.edition()
        if edition != self._edition:
            self._edition = edition
            self._theirs = self._neighbourhood.theirs(self.key)
        if not self._theirs:
            return NOTHING_SAID
        begun = beginning = 0
        waiting: list[int] = []
        for row in self._theirs:
            numbers = row.tolist()
            begun += numbers[0]
            if now - numbers[3] < HANGS_NS:
                # It looked when it let these in, and they have an engine a moment later.
                beginning += numbers[1]
                if numbers[2]:
                    waiting.append(numbers[2])
        return OtherProcesses(begun, beginning, len(waiting), min(waiting, default=None))
