"""A load that is written: ask, count, wait. D's side, on a thread of the load's own.

How many writes there will be hangs on P's shape, which P tells when it begins; a write
that lands before we count it is counted all the same, as nobody else has its immediate.
And nobody says "done": when the count is complete, the pages are there.
"""

import itertools
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from pdgate.transfer import descriptors
from pdgate.transfer.base import Backend, Region, Transfer
from pdgate.transfer.messenger import messages, shards
from pdgate.transfer.messenger.context import unpack
from pdgate.transfer.messenger.errors import HandOverError, Why
from pdgate.transfer.messenger.interrupt import Interrupt
from pdgate.transfer.messenger.peer import ANSWER_SECONDS, Peer
from pdgate.transfer.messenger.push_in import Waiting
from pdgate.transfer.messenger.receiving import Patience, Receiving
from pdgate.transfer.messenger.shape import Shape
from pdgate.transfer.messenger.slots import Slots
from pdgate.transfer.messenger.source import Moved, Source, Target
from pdgate.transfer.plan.count import Rhythm
from pdgate.transfer.together import Together

TILE_TOKENS = 256
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
        inbox: Where contexts land.
    """

    backend: Backend
    regions: Sequence[Region]
    shape: Shape
    immediates: Immediates
    patience: Patience
    closing: Callable[[], bool]
    inbox: Slots | None = None


def receive(
    receiver: Receiver,
    peer: Peer,
    source: Source,
    target: Target,
    until: float,
    interrupt: Interrupt,
    adrift: Callable[[HandOverError], None],
) -> Moved:
    """What came. When it returns or raises, no byte can land any more.

    `adrift` is called before that if the load has failed and the peer does not say so.
    Raises HandOverError, TransferError.
    """
    if not source.context:
        return _receive(receiver, peer, source, target, until, interrupt, adrift, None)
    if receiver.inbox is None:
        raise HandOverError(Why.UNSUPPORTED, "this engine has no room for contexts")
    with receiver.inbox.taken(until, interrupt) as slot:
        moved = _receive(receiver, peer, source, target, until, interrupt, adrift, slot)
        return replace(moved, context=unpack(receiver.inbox.view(slot)))


def _receive(
    receiver: Receiver,
    peer: Peer,
    source: Source,
    target: Target,
    until: float,
    interrupt: Interrupt,
    adrift: Callable[[HandOverError], None],
    slot: int | None,
) -> Moved:
    shape, inbox = receiver.shape, receiver.inbox
    tokens = range(target.skip * shape.block_tokens, target.tokens)
    wanted = Rhythm(TILE_TOKENS if source.by_layer else 0, source.by_layer)
    immediate = receiver.immediates.take()
    now = time.monotonic()
    if until <= now:
        raise HandOverError(Why.TOO_LATE, "no time is left to ask")
    meet_by = now + (source.wait_seconds or ANSWER_SECONDS)
    machine = Receiving(now, min(meet_by, until), until, receiver.patience)
    theirs = shape

    def expect(peers: Shape) -> Transfer:
        nonlocal theirs
        shards.meet(shape, peers)
        theirs = peers
        rhythm = shards.rhythm(peers, shape, wanted)
        due = list(zip(receiver.regions, shards.counts(peers, shape, tokens, rhythm), strict=True))
        if slot is not None and inbox is not None:
            due.append((inbox.region, 1))
        seconds = until - now + GRACE_SECONDS
        return Together(
            f"a push of {source.key}",
            [receiver.backend.expect(region, immediate, count, seconds) for region, count in due],
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
                [descriptors.as_data(region.descriptor) for region in receiver.regions],
                list(target.block_ids),
                tokens.start,
                tokens.stop,
                immediate,
                wanted.chunk_tokens,
                wanted.by_layer,
                None if slot is None or inbox is None else _room(inbox, slot),
            )
        )
        waiting.run()
    finally:
        waiting.close()
    return Moved(shards.moved_bytes(theirs, shape, tokens))


def _room(inbox: Slots, slot: int) -> messages.Room:
    return messages.Room(descriptors.as_data(inbox.region.descriptor), slot, inbox.max_bytes)
