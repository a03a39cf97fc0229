"""A push as D asks for it: nothing in it is believed before this."""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

from pdgate.transfer.arrivals import MAX_IMMEDIATE
from pdgate.transfer.base import Descriptor
from pdgate.transfer.messenger import messages, shards
from pdgate.transfer.messenger.errors import HandOverError, Why
from pdgate.transfer.messenger.shape import Shape, differences
from pdgate.transfer.messenger.tiles import Tiles

MAX_SECONDS = 3600.0
MAX_TILE_BLOCKS = 256
"""What one order to a mover holds."""


@dataclass(frozen=True, slots=True)
class Asked:
    """
    Attributes:
        wait: Whether the key may still be unknown.
        block_ids: D's, for the blocks from `tiles.skip` on.
        until: On time.monotonic(): nothing is written later.
    """

    key: str
    wait: bool
    remotes: Sequence[Descriptor]
    shape: Shape
    block_ids: Sequence[int]
    tiles: Tiles
    immediate: int
    until: float


def check(push: messages.Push, ours: Shape, backend: str) -> Asked:
    """Raises HandOverError."""
    theirs = push.shape
    if wrong := differences(ours, theirs):
        raise HandOverError(Why.WRONG_SHAPE, wrong)
    if not (push.skip >= 0 and push.tokens > push.skip * ours.block_tokens):
        raise HandOverError(Why.BROKEN, f"{push.tokens} tokens without {push.skip} blocks")
    if not 1 <= push.tile_blocks <= MAX_TILE_BLOCKS:
        raise HandOverError(Why.UNSUPPORTED, f"a tile of {push.tile_blocks} blocks")
    if not 0 <= push.immediate <= MAX_IMMEDIATE:
        raise HandOverError(Why.BROKEN, f"{push.immediate} is no u32")
    if not (math.isfinite(push.seconds) and push.seconds > 0):
        raise HandOverError(Why.BROKEN, "a push without an end")
    tiles = Tiles(ours.layers, ours.block_tokens, push.skip, push.tokens, push.tile_blocks)
    if len(push.block_ids) != tiles.blocks - tiles.skip:
        raise HandOverError(
            Why.BAD_BLOCKS, f"{len(push.block_ids)} blocks for {push.tokens} tokens"
        )
    theirs.check(push.block_ids)
    if len(set(push.block_ids)) != len(push.block_ids):
        raise HandOverError(Why.BAD_BLOCKS, "a block is named twice")
    remotes = shards.remotes(push.descriptors, theirs, backend)
    # Only to have it refused here if their shards and ours do not go together.
    shards.pairs(ours, theirs, push.key)
    until = time.monotonic() + min(push.seconds, MAX_SECONDS)
    return Asked(
        push.key,
        push.wait,
        tuple(remotes),
        theirs,
        tuple(push.block_ids),
        tiles,
        push.immediate,
        until,
    )
