"""Who is measured, and against what."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from benchmarks.transfer import alone, bare, ours
from benchmarks.transfer.ends import Far, Near

MEMCPY: Final = "memcpy"
SOCKET: Final = "socket"
BARE: Final = "bare"
ALONE: Final = "alone"
OURS: Final = "ours"


@dataclass(frozen=True, slots=True)
class Contender:
    """
    Attributes:
        kind: BARE (name says which), ALONE (the library `backend`) or OURS.
        baseline: Name of the contender that it is compared with; itself for a baseline.
        registered: The far end's memory was not allocated by the backend.
        in_one_piece: It moves as many bytes as the pages have, end to end.
    """

    name: str
    kind: str
    baseline: str
    backend: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    registered: bool = False
    in_one_piece: bool = False

    def far(self, length: int) -> Far:
        if self.kind == OURS:
            return ours.FarRegion(self.backend, self.options, length, registered=self.registered)
        if self.kind == ALONE:
            return alone.FarLibrary(self.backend, length)
        return bare.FarMapping(length) if self.name == MEMCPY else bare.FarSocket(length)

    def near(self, length: int, card: Mapping[str, Any]) -> Near:
        if self.kind == OURS:
            return ours.NearRegion(self.backend, self.options, length, card)
        if self.kind == ALONE:
            return alone.NearLibrary(self.backend, length, card)
        if self.name == MEMCPY:
            return bare.NearMapping(length, card)
        return bare.NearSocket(length, card)


CONTENDERS: Final = {
    one.name: one
    for one in (
        Contender(MEMCPY, BARE, MEMCPY),
        Contender("shm", OURS, MEMCPY, "shm"),
        Contender("shm-registered", OURS, MEMCPY, "shm", registered=True),
        Contender(SOCKET, BARE, SOCKET),
        Contender("socket-in-one-piece", BARE, SOCKET, in_one_piece=True),
        Contender("tcp", OURS, SOCKET, "tcp"),
        Contender("tcp-4-connections", OURS, SOCKET, "tcp", {"connections": 4}),
        Contender("tcp-crc", OURS, SOCKET, "tcp", {"crc": True}),
        Contender("mooncake", OURS, SOCKET, "mooncake"),
        Contender("mooncake-alone", ALONE, SOCKET, "mooncake"),
        Contender("nixl", OURS, SOCKET, "nixl"),
        Contender("nixl-alone", ALONE, SOCKET, "nixl"),
    )
}
"""Each baseline stands before those that are compared with it."""
