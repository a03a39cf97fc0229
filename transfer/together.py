"""Several transfers as one, where the memory of one side lies in several regions.

Done when all are; over as soon as one goes wrong, and then the others are cancelled: what
came of them is of no use. Settled when all are, so no byte can land in any region.
"""

import threading
import time
from collections.abc import Sequence

from pdgate.transfer.base import State, Transfer
from pdgate.transfer.runtime.running import RunningTransfer


class Together(RunningTransfer):
    def __init__(self, what: str, parts: Sequence[Transfer]) -> None:
        super().__init__(what)
        self._parts = tuple(parts)
        self._counting = threading.Lock()
        self._missing = len(self._parts)
        self.on_interrupt(self._cancel_parts)
        if not self._parts:
            self.end(State.DONE)
        for part in self._parts:
            part.add_done_callback(self._part_ended)

    @property
    def settled(self) -> bool:
        return all(part.settled for part in self._parts)

    def settle(self, timeout_seconds: float) -> bool:
        until = time.monotonic() + timeout_seconds
        return all(part.settle(max(0.0, until - time.monotonic())) for part in self._parts)

    def _part_ended(self, part: Transfer) -> None:
        if part.state is not State.DONE:
            self.end(part.state, part.error)
            return
        with self._counting:
            self._missing -= 1
            last = self._missing == 0
        if last:
            self.end(State.DONE)

    def _cancel_parts(self) -> None:
        for part in self._parts:
            part.cancel()
