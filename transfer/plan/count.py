"""Count of writes that a destination rank waits for: no message says that a push is complete.

Source and destination each count on their own, from the two layouts and the rhythm that
the call agreed on. What a source's scheduler does (chunks of any size, a cached prefix)
must not change the number, so writes go by a grid that is fixed in the sequence:

    chunk_tokens 32     0        32        64        96
    tokens 16..80           |=====|=========|====|           3 chunks

A write is one call of `Backend.write`: a source rank makes it for each destination rank that
shares heads and layers with it, when the last token of a chunk is computed; per layer, or for
all layers that the two share.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import overload

from pdgate.transfer.plan.layout import KvLayout
from pdgate.transfer.plan.links import common


@dataclass(frozen=True, slots=True)
class Rhythm:
    """
    Attributes:
        chunk_tokens: Grid of the writes; 0 for the whole prompt at once.
        by_layer: A write per layer, rather than one for all layers.
    """

    chunk_tokens: int
    by_layer: bool


WHOLE = Rhythm(chunk_tokens=0, by_layer=False)


def fitting(source: KvLayout, destination: KvLayout, wanted: Rhythm) -> Rhythm:
    """What comes closest to it: a block that two chunks share would be written twice."""
    larger = max(source.block_tokens, destination.block_tokens)
    return replace(wanted, chunk_tokens=-(-wanted.chunk_tokens // larger) * larger)


class Chunks(Sequence[range]):
    """`tokens` cut at the multiples of `chunk_tokens`. None of them is kept: a peer says how many there are."""

    def __init__(self, tokens: range, chunk_tokens: int) -> None:
        self._tokens = tokens
        self._length = chunk_tokens or max(1, len(tokens))
        first = tokens.start // chunk_tokens * chunk_tokens if chunk_tokens else tokens.start
        self._starts = range(first, tokens.stop, self._length) if tokens else range(0)

    def __len__(self) -> int:
        return len(self._starts)

    @overload
    def __getitem__(self, at: int) -> range: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[range]: ...
    def __getitem__(self, at: int | slice) -> range | Sequence[range]:
        if isinstance(at, slice):
            return [self[one] for one in range(len(self))[at]]
        start = self._starts[at]
        return common(self._tokens, range(start, start + self._length))


def writes(layers: range, tokens: range, rhythm: Rhythm) -> int:
    """How many a source rank makes for a destination rank that shares these layers with it."""
    per_chunk = len(layers) if rhythm.by_layer else min(1, len(layers))
    return per_chunk * len(Chunks(tokens, rhythm.chunk_tokens))
