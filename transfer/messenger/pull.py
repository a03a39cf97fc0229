"""A load that reads: ask, read, release. D's side, on a thread of the load's own."""

import logging
import time
from collections.abc import Sequence

from pdgate.transfer.base import Backend, Region, Transfer
from pdgate.transfer.messenger import shards
from pdgate.transfer.messenger.errors import HandOverError, Why
from pdgate.transfer.messenger.interrupt import Interrupt
from pdgate.transfer.messenger.peer import Peer
from pdgate.transfer.messenger.shape import Shape, differences
from pdgate.transfer.messenger.source import Source, Target
from pdgate.transfer.together import Together

CLOSE_SECONDS = 10.0

log = logging.getLogger(__name__)


def pull(
    peer: Peer,
    source: Source,
    target: Target,
    shape: Shape,
    memory: tuple[Backend, Sequence[Region]],
    until: float,
    interrupt: Interrupt,
) -> int:
    """Bytes read. When it returns or raises, no byte can land any more.

    Raises HandOverError, TransferError.
    """
    backend, regions = memory
    read_seconds = max(0.0, until - time.monotonic() - source.wait_seconds)
    offer = peer.ask(source.key, source.wait_seconds, read_seconds, shape)
    if wrong := differences(shape, offer.shape):
        raise HandOverError(Why.WRONG_SHAPE, wrong)
    if offer.tokens < target.tokens:
        raise HandOverError(Why.TOO_SHORT, f"{offer.tokens} tokens offered, {target.tokens} needed")
    named = offer.block_ids if source.block_ids is None else source.block_ids
    blocks = pairs(offer.shape, target, named)
    remotes = shards.remotes(offer.descriptors, offer.shape, backend.name)
    cuts = shards.reads(offer.shape, shape, source.key, blocks)
    parts: list[Transfer] = []
    try:
        for cut in cuts:
            left = max(0.0, until - time.monotonic())
            parts.append(backend.read(regions[cut.ours], remotes[cut.theirs], cut.ranges, left))
        transfer = Together(f"a pull of {source.key}", parts)
        interrupt.arm(transfer.cancel)
        transfer.wait(max(0.0, until - time.monotonic()))
    finally:
        for part in parts:
            part.cancel()
        while not all(part.settle(CLOSE_SECONDS) for part in parts):
            log.warning("%s: bytes may still land; waiting", source.key)
    interrupt.arm(peer.interrupt)
    # Only now is it known that the pages were not used again while we read them.
    if not peer.release(source.key, offer.offer_id):
        raise HandOverError(Why.NOT_HELD, "the peer freed the pages while we read them")
    return sum(cut.total_bytes for cut in cuts)


def pairs(theirs: Shape, target: Target, source: Sequence[int]) -> shards.Blocks:
    """The peer's block and ours for all that is not to be skipped. Raises HandOverError."""
    to = target.block_ids
    if len(source) < len(to):
        raise HandOverError(Why.TOO_SHORT, f"{len(source)} blocks offered, {len(to)} needed")
    found = list(zip(source, to, strict=False))[target.skip :]
    theirs.check([its for its, _ in found])
    return found
