"""Mooncake's and NIXL's own figures: their library without the visits that we make around it.

What is missing then is what transfer/external_mover enforces: epochs, regions that close, counts.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from benchmarks.transfer.bare import shared
from benchmarks.transfer.ends import DONE, Far, Near
from pdgate.transfer import memory as memories
from pdgate.transfer.base import Op, Range
from pdgate.transfer.external_mover.library import Library, Move, Piece
from pdgate.transfer.mooncake import engine as mooncake_engine
from pdgate.transfer.mooncake.backend import MooncakeEngines
from pdgate.transfer.nixl.backend import Agent

LOOPBACK: Final = "127.0.0.1"


def library(name: str) -> Library:
    """Raises LookupError."""
    if name == "mooncake":
        return MooncakeEngines(mooncake_engine.maker(LOOPBACK, mooncake_engine.MooncakeSettings()))
    return Agent("NET_DEVICES=lo")


class FarLibrary(Far):
    def __init__(self, name: str, length: int) -> None:
        self._library = library(name)
        _, self.memory = shared(length)
        self._base = memories.address(self.memory)
        self._library.register(self._base, length)
        self.card = {"base": self._base, "card": self._library.card().hex()}

    def close(self) -> None:
        self._library.unregister(self._base, len(self.memory))
        self._library.close()


class NearLibrary(Near):
    def __init__(self, name: str, length: int, card: Mapping[str, Any]) -> None:
        self._library = library(name)
        _, self.memory = shared(length)
        self._base = memories.address(self.memory)
        self._library.register(self._base, length)
        self._remote: int = card["base"]
        self._card = bytes.fromhex(card["card"])

    def begin(self, ranges: Sequence[Range]) -> Callable[[], None]:
        pieces = [
            Piece(self._base + one.local, self._remote + one.remote, one.length) for one in ranges
        ]
        self._library.move(Move(Op.WRITE, self._card, pieces, None, lambda: False))
        return DONE

    def close(self) -> None:
        self._library.unregister(self._base, len(self.memory))
        self._library.close()
