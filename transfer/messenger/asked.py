"""A push as D asks for it: nothing in it is believed before this."""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pdgate.transfer.base import Descriptor
from pdgate.transfer.messenger import context, messages, shards, workers
from pdgate.transfer.messenger.errors import HandOverError, Why
from pdgate.transfer.messenger.shape import ALL, PageShape, Ranks
from pdgate.transfer.messenger.shards import EVERY, Between
from pdgate.transfer.messenger.tiles import Tiles
from pdgate.transfer.messenger.workers import WHOLE, KeyShare
from pdgate.transfer.plan.count import Rhythm
from pdgate.transfer.runtime.arrivals import MAX_IMMEDIATE

MAX_SECONDS = 3600.0
MAX_TILE_TOKENS = 1 << 24


@dataclass(frozen=True, slots=True)
class ContextSlot:
    """Where a context goes: `offset` in bytes."""

    remote: Descriptor
    offset: int


@dataclass(frozen=True, slots=True)
class Asked:
    """
    Attributes:
        wait: Whether the key may still be unknown.
        remotes: D's regions, by their numbers.
        block_ids: D's, from the prompt's first token on.
        until: On time.monotonic(): nothing is written later.
        slot: For a context, if D wants one and we have some for it.
        between: Which ranks of ours and of D's it is about.
        share: What it takes of all that D takes here.
    """

    key: str
    wait: bool
    remotes: Mapping[int, Descriptor]
    shape: PageShape
    block_ids: Sequence[int]
    tiles: Tiles
    immediate: int
    until: float
    slot: ContextSlot | None = None
    between: Between = EVERY
    share: KeyShare = WHOLE


def check(
    push: messages.Push,
    ours: PageShape,
    backend: str,
    context_bytes: int | None,
    held: Ranks = ALL,
) -> Asked | None:
    """None if D has to ask other workers too; we hold the ranks `held`.

    `context_bytes`: what our contexts may have; None if we send none. Raises HandOverError.
    """
    theirs, ranks = push.shape, push.ranks
    shards.meet(ours, theirs)
    share = workers.share(ours, held, theirs, ranks, push.key, only_here=push.only_here)
    if share is None:
        return None
    between = Between(held, ranks)
    moving = shards.pairs(ours, theirs, push.key, between)
    if not moving:
        raise HandOverError(Why.WRONG_SHAPE, "nothing of this prompt lies here")
    unit = shards.unit_tokens(ours, theirs)
    if not 0 <= push.start < push.tokens or push.start % unit:
        raise HandOverError(Why.BROKEN, f"tokens {push.start} to {push.tokens}, in units of {unit}")
    # All of a push is kept for as long as its key is waited for: no more than could ever be written.
    if push.tokens > (most := ours.blocks * ours.block_tokens):
        raise HandOverError(Why.TOO_SHORT, f"{most} tokens fit here, {push.tokens} needed")
    if not 0 <= push.tile_tokens <= MAX_TILE_TOKENS:
        raise HandOverError(Why.UNSUPPORTED, f"a tile of {push.tile_tokens} tokens")
    if not 0 <= push.immediate <= MAX_IMMEDIATE:
        raise HandOverError(Why.BROKEN, f"{push.immediate} is no u32")
    if not (math.isfinite(push.seconds) and push.seconds > 0):
        raise HandOverError(Why.BROKEN, "a push without an end")
    _check_blocks(push)
    rhythm = shards.rhythm(ours, theirs, Rhythm(push.tile_tokens, push.by_layer))
    return Asked(
        push.key,
        push.wait,
        shards.remotes(push.descriptors, theirs, backend, ranks),
        theirs,
        tuple(push.block_ids),
        Tiles.of(shards.layers(moving), range(push.start, push.tokens), rhythm),
        push.immediate,
        time.monotonic() + min(push.seconds, MAX_SECONDS),
        None if push.context is None else _slot(push.context, backend, context_bytes),
        between,
        share,
    )


def _check_blocks(push: messages.Push) -> None:
    if len(push.block_ids) != push.shape.blocks_for(push.tokens):
        raise HandOverError(
            Why.BAD_BLOCKS, f"{len(push.block_ids)} blocks for {push.tokens} tokens"
        )
    push.shape.check(push.block_ids)
    if len(set(push.block_ids)) != len(push.block_ids):
        raise HandOverError(Why.BAD_BLOCKS, "a block is named twice")


def _slot(
    room: messages.ContextRoom, backend: str, context_bytes: int | None
) -> ContextSlot | None:
    """None if D goes on without."""
    if not room.needed and (context_bytes is None or context_bytes > room.max_bytes):
        return None
    if context_bytes is None:
        raise HandOverError(Why.UNSUPPORTED, "this engine sends no contexts")
    if context_bytes > room.max_bytes:
        raise HandOverError(
            Why.WRONG_SHAPE,
            f"contexts of up to {context_bytes} bytes here, room for {room.max_bytes} there",
        )
    if room.offset < 0:
        raise HandOverError(Why.BROKEN, f"a slot at {room.offset}")
    needed = room.offset + context.slot_bytes(room.max_bytes)
    return ContextSlot(shards.remote(room.descriptor, needed, backend), room.offset)
