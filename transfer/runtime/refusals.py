"""Count of peers that did not prove who they are, by the port that they came to and by why."""

import threading
from collections.abc import Mapping
from enum import StrEnum
from typing import Final

DIALLED: Final = "dialled"
"""Instead of a port: the peer was dialled by us."""


class Reason(StrEnum):
    VERSION = "version"
    """It speaks another version of the handshake, or none."""
    SECRET = "secret"
    """It has another secret than we, or one of both has none."""
    PROOF = "proof"
    """It proved nothing of what it said, or is not who was meant."""
    BROKEN = "broken"
    """It hung up, or took too long."""


class Refusals:
    """Of one process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[tuple[str, Reason], int] = {}

    def add(self, port: str, why: Reason) -> None:
        with self._lock:
            self._counts[port, why] = self._counts.get((port, why), 0) + 1

    @property
    def counts(self) -> Mapping[tuple[str, Reason], int]:
        with self._lock:
            return dict(self._counts)

    @property
    def unproven(self) -> int:
        """Without those that only hung up."""
        return sum(count for (_, why), count in self.counts.items() if why is not Reason.BROKEN)
