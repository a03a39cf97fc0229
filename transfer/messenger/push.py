"""A load that is written: count, ask, wait. D's side, on a thread of the load's own.

The count is registered before P is asked, so that no write comes too early to be counted;
and nobody says "done": when the count is complete, the pages are there.
"""

import itertools
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass

from pdgate.transfer import descriptors
from pdgate.transfer.base import Backend, Region
from pdgate.transfer.messenger import messages
from pdgate.transfer.messenger.errors import HandOverError, Why
from pdgate.transfer.messenger.interrupt import Interrupt
from pdgate.transfer.messenger.peer import ANSWER_SECONDS, Peer
from pdgate.transfer.messenger.push_in import Waiting
from pdgate.transfer.messenger.receiving import Patience, Receiving
from pdgate.transfer.messenger.shape import Shape
from pdgate.transfer.messenger.source import Source, Target
from pdgate.transfer.messenger.tiles import Tiles

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
    region: Region
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
    shape, region = receiver.shape, receiver.region
    tiles = Tiles(shape.layers, shape.block_tokens, target.skip, target.tokens, TILE_BLOCKS)
    immediate = receiver.immediates.take()
    now = time.monotonic()
    if until <= now:
        raise HandOverError(Why.TOO_LATE, "no time is left to ask")
    meet_by = now + (source.wait_seconds or ANSWER_SECONDS)
    machine = Receiving(now, min(meet_by, until), until, receiver.patience)
    waiting = Waiting(peer.socket, machine, adrift, receiver.closing)
    count = receiver.backend.expect(region, immediate, tiles.count, until - now + GRACE_SECONDS)
    try:
        count.add_done_callback(waiting.counted)
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
                descriptors.as_data(region.descriptor),
                list(target.block_ids[target.skip :]),
                target.skip,
                target.tokens,
                immediate,
                TILE_BLOCKS,
            )
        )
        waiting.run()
    finally:
        count.cancel()
        waiting.close()
    return shape.layers * (tiles.blocks - tiles.skip) * shape.page_bytes
