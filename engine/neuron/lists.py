"""Lists of what goes over which communicator: the contract of slices.py and whole_pages.py.

Both ends list the same pieces in the same order, from what both know: each other's shapes and
block ids. P posts what `sent` says, and D what `received` says.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from pdgate.engine.neuron.posts import PostPieces
from pdgate.transfer.plan.pair import BadBlocks

Ends = tuple[int, int]
"""Tensor-parallel rank of P, and which memory of D."""


@dataclass(frozen=True, slots=True, eq=False)
class ListedPieces:
    """Pieces of one layer, for one communicator."""

    ends: Ends
    pieces: PostPieces
    layer: int


class Lists(Protocol):
    @property
    def ends(self) -> Sequence[Ends]:
        """All communicators, in an order that both ends have."""

    def sent(self, uid: str, blocks: Sequence[int], to: Sequence[int | None]) -> list[ListedPieces]:
        """Pieces of P's memory: `blocks` are P's, `to` are D's. Raise BadBlocks."""

    def received(
        self, uid: str, of: Sequence[int], blocks: Sequence[int | None]
    ) -> list[ListedPieces]:
        """Pieces of D's memory: `of` are P's, `blocks` are D's. Raise BadBlocks."""


def to_fill(source: Sequence[int], destination: Sequence[int | None]) -> tuple[int, list[int]]:
    """How many blocks are there already, and which come after them. Raises BadBlocks."""
    if len(destination) > len(source):
        raise BadBlocks(f"{len(destination)} blocks to fill from {len(source)}")
    there = next((n for n, one in enumerate(destination) if one is not None), len(destination))
    to = [one for one in destination[there:] if one is not None]
    if there + len(to) != len(destination):
        raise BadBlocks("blocks that are there already come first")
    return there, to
