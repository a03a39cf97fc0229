"""Tiles, which are written and counted as one: a chunk of tokens in some layers.

    tokens 16..112         0     16  32      64      96  112
    chunks of 32 tokens              |=======|=======|===|       by a grid of the prompt
                                 |===|  0        1     2
    lanes                  each layer by itself, or all of them together
                                                                 count = lanes x 4

Both sides know the tiles from what D asked for, whatever chunks P computes in: so both know
the count before the first write, in which order they come does not matter, and P's chunk that
ends inside a page or a tile does not send it twice. A tile is ready when all its tokens are
computed in all its layers; the last one when the last token that D needs is.
"""

from bisect import bisect_right
from dataclasses import dataclass
from typing import Self

from pdgate.transfer.plan.count import Chunks, Rhythm


@dataclass(frozen=True, slots=True)
class Tile:
    lane: int
    chunk: int


@dataclass(frozen=True, slots=True)
class Tiles:
    """
    Attributes:
        lanes: Layers that are written together.
        chunks: Tokens of the prompt, those that D has already left out.
    """

    lanes: tuple[range, ...]
    chunks: Chunks

    @classmethod
    def of(cls, layers: range, tokens: range, rhythm: Rhythm) -> Self:
        alone = tuple(range(layer, layer + 1) for layer in layers)
        lanes = alone if rhythm.by_layer else (layers,)
        return cls(lanes, Chunks(tokens, rhythm.chunk_tokens))

    @property
    def layers(self) -> range:
        """Of the whole model, those that are written at all."""
        return range(self.lanes[0].start, self.lanes[-1].stop)

    @property
    def tokens(self) -> int:
        """How many leading tokens of the prompt have to be computed."""
        return self.chunks[-1].stop

    @property
    def count(self) -> int:
        return len(self.lanes) * len(self.chunks)

    def lane_of(self, layer: int) -> int:
        return layer - self.lanes[0].start if len(self.lanes) > 1 else 0

    def ready(self, computed_tokens: int) -> int:
        """How many of a lane's tiles are, from the first one on."""
        return bisect_right(self.chunks, computed_tokens, key=lambda chunk: chunk.stop)
