"""A load that reads: ask, read, release. D's side, on a thread of the load's own."""

import logging
import time
from collections.abc import Sequence

from pdgate.transfer import descriptors
from pdgate.transfer.base import Backend, Range, Region
from pdgate.transfer.messenger.errors import HandOverError, Why
from pdgate.transfer.messenger.interrupt import Interrupt
from pdgate.transfer.messenger.peer import Peer
from pdgate.transfer.messenger.shape import Shape, differences, ranges
from pdgate.transfer.messenger.source import Source, Target

CLOSE_SECONDS = 10.0

log = logging.getLogger(__name__)


def pull(
    peer: Peer,
    source: Source,
    target: Target,
    shape: Shape,
    memory: tuple[Backend, Region],
    until: float,
    interrupt: Interrupt,
) -> int:
    """Bytes read. When it returns or raises, no byte can land any more.

    Raises HandOverError, TransferError.
    """
    backend, region = memory
    read_seconds = max(0.0, until - time.monotonic() - source.wait_seconds)
    offer = peer.ask(source.key, source.wait_seconds, read_seconds, shape)
    if wrong := differences(shape, offer.shape):
        raise HandOverError(Why.WRONG_SHAPE, wrong)
    if offer.tokens < target.tokens:
        raise HandOverError(Why.TOO_SHORT, f"{offer.tokens} tokens offered, {target.tokens} needed")
    named = offer.block_ids if source.block_ids is None else source.block_ids
    wanted = reads(shape, offer.shape, target, named)
    try:
        remote = descriptors.from_data(offer.descriptor)
    except ValueError as failure:
        raise HandOverError(Why.BROKEN, str(failure)) from None
    transfer = backend.read(region, remote, wanted, max(0.0, until - time.monotonic()))
    try:
        interrupt.arm(transfer.cancel)
        transfer.wait(max(0.0, until - time.monotonic()))
    finally:
        transfer.cancel()
        while not transfer.settle(CLOSE_SECONDS):
            log.warning("%s: bytes may still land; waiting", source.key)
    interrupt.arm(peer.interrupt)
    # Only now is it known that the pages were not used again while we read them.
    if not peer.release(source.key, offer.offer_id):
        raise HandOverError(Why.NOT_HELD, "the peer freed the pages while we read them")
    return sum(one.length for one in wanted)


def reads(ours: Shape, theirs: Shape, target: Target, source: Sequence[int]) -> list[Range]:
    """One range per layer and block, but for the blocks to skip. Raises HandOverError.

    Layer by layer, so that neighbouring blocks become one range.
    """
    to = target.block_ids
    if len(source) < len(to):
        raise HandOverError(Why.TOO_SHORT, f"{len(source)} blocks offered, {len(to)} needed")
    pairs = list(zip(to, source, strict=False))[target.skip :]
    theirs.check([its for _, its in pairs])
    return [one for layer in range(ours.layers) for one in ranges(ours, theirs, layer, pairs)]
