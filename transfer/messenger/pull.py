"""A load that reads: ask, read, release. D's side, on a thread of the load's own."""

import logging
import time
from collections.abc import Sequence

from pdgate.transfer.base import Backend, Region, Transfer
from pdgate.transfer.messenger import shards
from pdgate.transfer.messenger.context import Context
from pdgate.transfer.messenger.errors import HandOverError, Why
from pdgate.transfer.messenger.interrupt import Interrupt
from pdgate.transfer.messenger.peer import Peer
from pdgate.transfer.messenger.shape import PageShape, Ranks
from pdgate.transfer.messenger.shards import Between
from pdgate.transfer.messenger.source import Moved, Source, Target
from pdgate.transfer.together import Together

CLOSE_SECONDS = 10.0

log = logging.getLogger(__name__)


def pull(
    peer: Peer,
    source: Source,
    target: Target,
    shape: PageShape,
    memory: tuple[Backend, Sequence[Region], Ranks],
    until: float,
    interrupt: Interrupt,
) -> Moved:
    """What was read. When it returns or raises, no byte can land any more.

    `memory`: a region for each of these ranks of ours. Raises HandOverError, TransferError.
    """
    backend, regions, ranks = memory
    here = dict(zip(ranks or range(shape.ranks), regions, strict=True))
    read_seconds = max(0.0, until - time.monotonic() - source.wait_seconds)
    only_here = bool(source.ranks)
    offer = peer.ask(
        source.key, source.wait_seconds, read_seconds, shape, ranks, only_here=only_here
    )
    shards.meet(shape, offer.shape)
    if offer.tokens < target.tokens:
        raise HandOverError(Why.TOO_SHORT, f"{offer.tokens} tokens offered, {target.tokens} needed")
    named = offer.block_ids if source.block_ids is None else source.block_ids
    tokens = range(target.skip * shape.block_tokens, target.tokens)
    remotes = shards.remotes(offer.descriptors, offer.shape, backend.name, offer.ranks)
    between = Between(source.ranks, ranks)
    cuts = shards.reads(
        offer.shape,
        shape,
        source.key,
        (checked(offer.shape, tokens, named), target.block_ids),
        tokens,
        between,
    )
    if missing := {cut.theirs for cut in cuts} - set(remotes):
        raise HandOverError(Why.BROKEN, f"ranks {sorted(missing)} of the peer were not offered")
    parts: list[Transfer] = []
    try:
        for cut in cuts:
            left = max(0.0, until - time.monotonic())
            parts.append(backend.read(here[cut.ours], remotes[cut.theirs], cut.ranges, left))
        transfer = Together(f"a pull of {source.key}", parts)
        interrupt.arm(transfer.cancel)
        transfer.wait(max(0.0, until - time.monotonic()))
    finally:
        for part in parts:
            part.cancel()
        while not all(part.settle(CLOSE_SECONDS) for part in parts):
            log.warning("%s: bytes may still land; waiting", source.key)
    interrupt.arm(peer.interrupt)
    moving = shards.pairs(offer.shape, shape, source.key, between)
    moved = shards.moved_bytes(offer.shape, shape, tokens, moving)
    # Only now is it known that the pages were not used again while we read them.
    if not peer.release(source.key, offer.offer_id, moved):
        raise HandOverError(Why.NOT_HELD, "the peer freed the pages while we read them")
    return Moved(moved, Context(offer.first_token, offer.context))


def checked(theirs: PageShape, tokens: range, blocks: Sequence[int]) -> Sequence[int]:
    """The peer's blocks, if they hold the tokens. Raises HandOverError."""
    needed = theirs.blocks_for(tokens.stop)
    if len(blocks) < needed:
        raise HandOverError(Why.TOO_SHORT, f"{len(blocks)} blocks offered, {needed} needed")
    theirs.check(blocks[tokens.start // theirs.block_tokens : needed])
    return blocks
