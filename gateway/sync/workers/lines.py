"""The lines of waiting calls of all workers, for each model: ours written, the others' read.

begun, beginning   calls, as in scheduling/admission/room.py
since              when its turn was last; 0 where no call waits
looked             when it looked last whether one may begin; both in monotonic ns, which are the
                   same in all processes of a host
"""

from collections.abc import Callable
from time import monotonic_ns
from typing import Final

from pdgate.gateway.sync.workers.neighbourhood import Neighbourhood
from pdgate.gateway.sync.workers.table import key_of
from pdgate.scheduling.admission.others import NOBODY, OtherProcesses

MODEL: Final = "model"
HANGS_NS: Final = 1_000_000_000
"""A worker whose calls wait, and that has not looked for so long, must not hold up the others."""


class SharedLines:
    """
    Attributes:
        take_in: Brings the accounts of engines up to date.
    """

    def __init__(self, neighbourhood: Neighbourhood, take_in: Callable[[], None]) -> None:
        self.take_in = take_in
        self._neighbourhood = neighbourhood

    def of(self, model: str) -> "SharedLine | None":
        """Line of a model, kept for good; None where no more can be shared."""
        key = key_of(MODEL, model)
        told = self._neighbourhood.give(key)
        return None if told is None else SharedLine(self._neighbourhood, key, told)


class SharedLine:
    """Waiting calls of one model, in all workers."""

    __slots__ = ("_edition", "_key", "_neighbourhood", "_theirs", "_told")

    def __init__(self, neighbourhood: Neighbourhood, key: int, told: memoryview) -> None:
        self._neighbourhood = neighbourhood
        self._key = key
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
            self._theirs = self._neighbourhood.theirs(self._key)
        if not self._theirs:
            return NOBODY
        begun = beginning = 0
        waiting: list[int] = []
        for row in self._theirs:
            numbers = row.tolist()
            begun += numbers[0]
            beginning += numbers[1]
            if numbers[2] and now - numbers[3] < HANGS_NS:
                waiting.append(numbers[2])
        return OtherProcesses(begun, beginning, len(waiting), min(waiting, default=None))
