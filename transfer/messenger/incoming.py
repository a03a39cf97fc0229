"""A push as D wants it: what is said to P, what is counted, and what has come in the end.

How many writes there will be hangs on P's shape, which P tells when it begins; a write that
lands before we count it is counted all the same, as no other push has its immediate.
"""

import itertools
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass

from pdgate.transfer import descriptors
from pdgate.transfer.base import Backend, Descriptor, Grant, Op, Region, Transfer
from pdgate.transfer.messenger import context as contexts
from pdgate.transfer.messenger import messages, shards
from pdgate.transfer.messenger.errors import HandOverError, Why
from pdgate.transfer.messenger.shape import PageShape, Ranks
from pdgate.transfer.messenger.shards import Between
from pdgate.transfer.messenger.slots import Slots
from pdgate.transfer.messenger.source import Moved, Source, Target
from pdgate.transfer.parts import Part, Stretch
from pdgate.transfer.plan.count import WHOLE, Rhythm
from pdgate.transfer.plan.pair import Pair
from pdgate.transfer.together import Together

TILE_TOKENS = 1024
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
class ReceivingMemory:
    """
    Attributes:
        regions: One for each of `ranks`, which are all of the engine's if they are empty.
        inbox: Where contexts land, if any may.
    """

    backend: Backend
    regions: Sequence[Region]
    shape: PageShape
    ranks: Ranks
    immediates: Immediates
    inbox: Slots | None


class IncomingPages:
    def __init__(
        self,
        memory: ReceivingMemory,
        source: Source,
        target: Target,
        slot: int | None,
        until: float,
    ) -> None:
        """`slot`: of the inbox, if a context is wanted. `until` is of time.monotonic()."""
        self._memory = memory
        self._source = source
        self._target = target
        self._slot = slot
        self._until = until
        self._immediate = memory.immediates.take()
        self._tokens = range(target.skip * memory.shape.block_tokens, target.tokens)
        self._rhythm = Rhythm(TILE_TOKENS, by_layer=True) if source.by_layer else WHOLE
        self._theirs = memory.shape
        self._grants: list[Grant] = []

    def message(self, engine_id: str, peer: str) -> messages.Push:
        """`peer` may write what it says, until `close`."""
        memory, inbox = self._memory, self._memory.inbox
        room = None
        if inbox is not None and self._slot is not None:
            slot = self._grant(inbox.region, peer, Stretch(self._slot, inbox.slot_bytes))
            room = messages.ContextRoom(
                descriptors.as_data(slot),
                self._slot,
                inbox.max_bytes,
                needed=self._source.context_needed,
            )
        first = self._target.skip
        pages = memory.shape.part(self._target.block_ids[first:])
        return messages.Push(
            self._source.key,
            engine_id,
            self._source.wait_seconds > 0,
            self._until - time.monotonic(),
            memory.shape,
            [descriptors.as_data(self._grant(region, peer, pages)) for region in memory.regions],
            list(self._target.block_ids),
            self._tokens.start,
            self._tokens.stop,
            self._immediate,
            self._rhythm.chunk_tokens,
            self._rhythm.by_layer,
            room,
            memory.ranks,
            bool(self._source.ranks),
        )

    def close(self) -> None:
        """Nothing can be written any more. After a load that ended: nothing is."""
        for grant in self._grants:
            grant.revoke()

    def _grant(self, region: Region, peer: str, part: Part) -> Descriptor:
        only = range(self._immediate, self._immediate + 1)
        left = self._until - time.monotonic()
        grant = region.grant(peer, Op.WRITE, part, left, only)
        self._grants.append(grant)
        return grant.descriptor

    def expect(self, theirs: PageShape, context: bool) -> Transfer:
        """Ends when all has landed, with a context if one comes. Raises HandOverError, TransferError."""
        if not context:
            if self._source.context_needed and self._slot is not None:
                raise HandOverError(Why.BROKEN, "the prefill engine leaves the context out")
            self._slot = None
        memory, ours = self._memory, self._memory.shape
        shards.meet(ours, theirs)
        self._theirs = theirs
        rhythm = shards.rhythm(theirs, ours, self._rhythm)
        counts = shards.counts(self._moving(theirs), ours, self._tokens, rhythm)
        numbers = memory.ranks or range(ours.ranks)
        due = [
            (region, counts[number])
            for number, region in zip(numbers, memory.regions, strict=True)
            if counts[number]
        ]
        if memory.inbox is not None and self._slot is not None:
            due.append((memory.inbox.region, 1))
        seconds = self._until - time.monotonic() + GRACE_SECONDS
        return Together(
            f"a push of {self._source.key}",
            [
                memory.backend.expect(region, self._immediate, count, seconds)
                for region, count in due
            ],
        )

    def _moving(self, theirs: PageShape) -> list[Pair]:
        between = Between(self._source.ranks, self._memory.ranks)
        return shards.pairs(theirs, self._memory.shape, self._source.key, between)

    def moved(self) -> Moved:
        """When all has landed. Raises HandOverError for a context that is none."""
        memory = self._memory
        theirs = self._theirs
        pages = shards.moved_bytes(theirs, memory.shape, self._tokens, self._moving(theirs))
        if memory.inbox is None or self._slot is None:
            return Moved(pages)
        return Moved(pages, contexts.unpack(memory.inbox.view(self._slot)))
