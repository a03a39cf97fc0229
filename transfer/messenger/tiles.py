"""Pages that are written and counted together: a tile is a few blocks of one layer.

    blocks     0   1   2   3   4   5   6        skip = 1, tile_blocks = 2
    tiles          [ 0 ]  [ 1 ]   [ 2 ]         count = layers x 3

Both sides know the tiles from what D asked for, whatever chunks P computes in: so both know
the count before the first write, in which order they come does not matter, and a chunk that
ends inside a page or a tile does not send it twice. A tile is ready when all its tokens are
computed, the last one when the last token that D needs is.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Tiles:
    """
    Attributes:
        skip: Leading blocks that D has already.
        tokens: Leading tokens that D needs.
    """

    layers: int
    block_tokens: int
    skip: int
    tokens: int
    tile_blocks: int

    @property
    def blocks(self) -> int:
        """All blocks that hold the tokens, with those that are skipped."""
        return -(-self.tokens // self.block_tokens)

    @property
    def per_layer(self) -> int:
        return -(-(self.blocks - self.skip) // self.tile_blocks)

    @property
    def count(self) -> int:
        return self.layers * self.per_layer

    def span(self, tile: int) -> range:
        """Numbers of its blocks within the prompt."""
        start = self.skip + tile * self.tile_blocks
        return range(start, min(start + self.tile_blocks, self.blocks))

    def ready(self, computed_tokens: int) -> int:
        """How many of a layer's tiles are, from the first one on."""
        if computed_tokens >= self.tokens:
            return self.per_layer
        full_blocks = computed_tokens // self.block_tokens
        return max(0, full_blocks - self.skip) // self.tile_blocks
