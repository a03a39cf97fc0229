"""A load that is written: ask, count, wait. D's side, on a thread of the load's own.

How many writes there will be hangs on P's shards, which P tells when it accepts; a write
that lands before we count it is counted all the same, as nobody else has its immediate.
And nobody says "done": when the count is complete, the pages are there.
"""

import itertools
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from pdgate.transfer import descriptors
from pdgate.transfer.base import Backend, Region, Transfer
from pdgate.transfer.messenger import messages
from pdgate.transfer.messenger.errors import HandOverError, Why
from pdgate.transfer.messenger.interrupt import Interrupt
from pdgate.transfer.messenger.peer import ANSWER_SECONDS, Peer
from pdgate.transfer.messenger.push_in import Waiting
from pdgate.transfer.messenger.receiving import Patience, Receiving
from pdgate.transfer.messenger.shape import Shape
from pdgate.transfer.messenger.shards import senders
from pdgate.transfer.messenger.source import Source, Target
from pdgate.transfer.messenger.tiles import Tiles
from pdgate.transfer.together import Together

TILE_BLOCKS = 16
"""Small enough that the first pages leave early, large enough that a write is worth its call."""
GRACE_SECONDS = 60.0
"""An expectation outlives its load, which may still be told that all has landed after all."""


class Immediates:
    """Numbers that no other push into this memory had for a long time."""

    def __init__(self) -> None:
        self._next = itertools.count(secrets.randbits(32))

    def take(self) -> int:
        return next(self._next) % 2**32


@dataclass(frozen=True, slots=True)
class Receiver:
    """What every push into an engine needs.

    Attributes:
        closing: Whether the engine ends.
    """

    backend: Backend
    regions: Sequence[Region]
    shape: Shape
    immediates: Immediates
    patience: Patience
    closing: Callable[[], bool]


def receive(
    receiver: Receiver,
    peer: Peer,
    source: Source,
    target: Target,
    until: float,
    interrupt: Interrupt,
    adrift: Callable[[HandOverError], None],
) -> int:
    """Bytes that came. When it returns or raises, no byte can land any more.

    `adrift` is called before that if the load has failed and the peer does not say so.
    Raises HandOverError, TransferError.
    """
    shape, regions = receiver.shape, receiver.regions
    tiles = Tiles(shape.layers, shape.block_tokens, target.skip, target.tokens, TILE_BLOCKS)
    immediate = receiver.immediates.take()
    now = time.monotonic()
    if until <= now:
        raise HandOverError(Why.TOO_LATE, "no time is left to ask")
    meet_by = now + (source.wait_seconds or ANSWER_SECONDS)
    machine = Receiving(now, min(meet_by, until), until, receiver.patience)

    def expect(tp: int) -> Transfer:
        theirs = msgspec.structs.replace(shape, tp=tp)
        writers = [senders(theirs, shape, shard) for shard in range(shape.tp)]
        seconds = until - now + GRACE_SECONDS
        return Together(
            f"a push of {source.key}",
            [
                receiver.backend.expect(region, immediate, tiles.count * each, seconds)
                for region, each in zip(regions, writers, strict=True)
            ],
        )

    waiting = Waiting(peer.socket, machine, adrift, receiver.closing, expect)
    try:
        if source.prompt:
            peer.prefill(source.key, source.prompt)
        interrupt.arm(waiting.cancel)
        peer.say(
            messages.Push(
                source.key,
                peer.engine_id,
                source.wait_seconds > 0,
                until - now,
                shape,
                [descriptors.as_data(region.descriptor) for region in regions],
                list(target.block_ids[target.skip :]),
                target.skip,
                target.tokens,
                immediate,
                TILE_BLOCKS,
            )
        )
        waiting.run()
    finally:
        waiting.close()
    return shape.layers * (tiles.blocks - tiles.skip) * shape.page_bytes * shape.tp
