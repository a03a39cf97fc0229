"""Two-sided transfers between one rank of P and one of D, over any one-sided backend.

Neither end knows the other's addresses. Each posts lists of pieces (offset, length) of its
own memory; the first piece of the one goes into the first of the other, and so on: matched
by position, in order, and by nothing else. At most PENDING pieces are under way.

    D  posts 3 pieces  --writes them into slots k..k+2 of P's ring--->  P
    P  has posted 3, too: lengths agree, so it writes the data into D's memory and counts one
       arrival there                                                    D  slots are free again

Both ends cut their posts into batches in the same way, and one batch is written at a time, so
that arrivals need no names. The poster polls a CompletionToken; nothing calls back.

What goes wrong (the other end is gone, lengths differ) ends a communicator for good, with
everything posted on it: positions cannot be trusted any more. It takes a new pairing.

Source: AWS Neuron's vLLM V0 fork, neuron_transfer_engine.py: queue_transfer_with_token() of
the Neuron runtime, with its completion token and batches of 64.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from pdgate.engine.neuron.ground import Ground, failure_of
from pdgate.engine.neuron.posts import CompletionToken, PostGate, PostPieces
from pdgate.transfer import parts
from pdgate.transfer.base import (
    Descriptor,
    Range,
    Region,
    State,
    Transfer,
    TransferError,
)

PENDING: Final = 128
SLOT_BYTES: Final = 16
RING_BYTES: Final = PENDING * SLOT_BYTES


@dataclass(frozen=True, slots=True, eq=False)
class _Post:
    pieces: PostPieces
    token: CompletionToken
    gate: PostGate


class _Communicator:
    """What both ends share: a list of posts, of which the first is worked on."""

    def __init__(self, ground: Ground) -> None:
        self._ground = ground
        self._posts: deque[_Post] = deque()
        self._position = 0
        self.error: TransferError | None = None

    def post(
        self, pieces: PostPieces, token: CompletionToken, gate: PostGate | None = None
    ) -> None:
        gate = gate or PostGate()
        for batch in pieces.batches():
            token.posted()
            if self.error is not None:
                token.ended(self.error)
            else:
                self._posts.append(_Post(batch, token, gate))

    def _watched(self, transfer: Transfer) -> Transfer:
        transfer.add_done_callback(lambda _: self._ground.wake())
        return transfer

    def _slots(self, count: int) -> Iterator[tuple[int, int]]:
        """(first slot, how many) from our position on: two runs where the ring ends."""
        first = self._position % PENDING
        before_end = min(count, PENDING - first)
        yield first, before_end
        if before_end < count:
            yield 0, count - before_end


class Sender(_Communicator):
    """P's end.

    Args:
        ring: Our memory that D writes its posts into, from `ring_offset` on; D counts
            `ring_immediate` there.
        remote: D's memory; we count `immediate` there.
    """

    def __init__(
        self,
        ground: Ground,
        local: Region,
        remote: Descriptor,
        immediate: int,
        ring: Region,
        ring_offset: int,
        ring_immediate: int,
    ) -> None:
        super().__init__(ground)
        self._local = local
        self._remote = remote
        self._immediate = immediate
        self._ring = ring
        self._ring_offset = ring_offset
        self._ring_immediate = ring_immediate
        self._credit: Transfer | None = None
        self._writing: Transfer | None = None

    def pump(self) -> None:
        """Goes on as far as it can without waiting."""
        while self._posts and self.error is None:
            try:
                if not self._advance(self._posts[0]):
                    return
            except TransferError as error:
                self.end(error)

    def end(self, error: TransferError) -> None:
        """Fails everything that is posted. Bytes may be under way until `settled`."""
        if self.error is not None:
            return
        self.error = error
        for transfer in (self._credit, self._writing):
            if transfer is not None:
                transfer.cancel()
        while self._posts:
            self._posts.popleft().token.ended(error)

    @property
    def settled(self) -> bool:
        """Whether the peer reads none of this side's memory any more."""
        return self._writing is None or self._writing.settled

    def _advance(self, post: _Post) -> bool:
        """One step with the first post; False if it has to wait. Raises TransferError."""
        backend, seconds = self._ground.backend, self._ground.seconds
        if self._writing is not None:
            return self._written(post)
        if not post.gate.is_open:
            return False
        if self._credit is None:
            self._credit = self._watched(
                backend.expect(self._ring, self._ring_immediate, 1, seconds)
            )
        if failure := failure_of(self._credit):
            raise failure
        if self._credit.state is State.RUNNING:
            return False
        ranges = self._matched(post.pieces)
        self._writing = self._watched(
            backend.write(self._local, self._remote, ranges, seconds, self._immediate)
        )
        return True

    def _written(self, post: _Post) -> bool:
        if failure := failure_of(self._writing):
            raise failure
        if self._writing is None or self._writing.state is State.RUNNING:
            return False
        self._position += len(post.pieces.lengths)
        self._credit = self._writing = None
        self._posts.popleft()
        post.token.ended()
        return True

    def _matched(self, pieces: PostPieces) -> list[Range]:
        """With what D has posted in the same positions. Raises TransferError."""
        memory = self._ring.memory[self._ring_offset :][:RING_BYTES]
        theirs = np.concatenate(
            [
                np.frombuffer(memory, "<i8", 2 * count, first * SLOT_BYTES)
                for first, count in self._slots(len(pieces.lengths))
            ]
        ).reshape(-1, 2)
        if not np.array_equal(theirs[:, 1], pieces.lengths):
            raise TransferError("both ends must post pieces of the same lengths, in the same order")
        return list(
            map(Range, pieces.offsets.tolist(), theirs[:, 0].tolist(), pieces.lengths.tolist())
        )


class Receiver(_Communicator):
    """D's end.

    Args:
        local: Where the data lands; P counts `immediate` there.
        awaited: Of `local`, where P may write: what it has been told and has not landed.
        staging: Ours, as long as all rings; `ring` is P's, both from `ring_offset` on.
    """

    def __init__(
        self,
        ground: Ground,
        local: Region,
        immediate: int,
        awaited: parts.Pieces,
        staging: Region,
        ring: Descriptor,
        ring_offset: int,
        ring_immediate: int,
        landing_seconds: float,
    ) -> None:
        super().__init__(ground)
        self._local = local
        self._immediate = immediate
        self._awaited = awaited
        self._staging = staging
        self._ring = ring
        self._ring_offset = ring_offset
        self._ring_immediate = ring_immediate
        self._landing_seconds = landing_seconds
        self._telling: Transfer | None = None
        self._landing: deque[tuple[_Post, Transfer]] = deque()
        self._pending = 0

    def pump(self) -> None:
        """Goes on as far as it can without waiting."""
        try:
            while self.error is None and (self._land() or self._tell()):
                pass
        except TransferError as error:
            self.end(error)

    def end(self, error: TransferError) -> None:
        """Fails everything that is posted. P may still write; only it knows."""
        if self.error is not None:
            return
        self.error = error
        while self._landing:
            post, transfer = self._landing.popleft()
            transfer.cancel()
            post.token.ended(error)
        while self._posts:
            self._posts.popleft().token.ended(error)

    def _land(self) -> bool:
        """Takes note of one batch that has arrived. Raises TransferError."""
        if not self._landing:
            return False
        post, transfer = self._landing[0]
        if failure := failure_of(transfer):
            raise failure
        if transfer.state is State.RUNNING:
            return False
        self._landing.popleft()
        self._awaited.remove(post.pieces.offsets.tolist(), post.pieces.lengths.tolist())
        self._pending -= len(post.pieces.lengths)
        post.token.ended()
        return True

    def _tell(self) -> bool:
        """Tells P of one batch. Raises TransferError."""
        if failure := failure_of(self._telling):
            raise failure
        # One at a time: P takes the first arrival for the first batch.
        if self._telling is not None and self._telling.state is State.RUNNING:
            return False
        if not self._posts or not self._posts[0].gate.is_open:
            return False
        count = len(self._posts[0].pieces.lengths)
        if self._pending + count > PENDING:
            return False
        post = self._posts.popleft()
        backend = self._ground.backend
        self._awaited.add(post.pieces.offsets.tolist(), post.pieces.lengths.tolist())
        landed = backend.expect(self._local, self._immediate, 1, self._landing_seconds)
        self._landing.append((post, self._watched(landed)))
        self._pending += count
        self._telling = self._watched(
            backend.write(
                self._staging,
                self._ring,
                self._write_slots(post.pieces),
                self._ground.seconds,
                self._ring_immediate,
            )
        )
        return True

    def _write_slots(self, pieces: PostPieces) -> list[Range]:
        rows = np.stack((pieces.offsets, pieces.lengths), axis=1).astype("<i8")
        ranges, done = [], 0
        for first, count in self._slots(len(rows)):
            start, length = self._ring_offset + first * SLOT_BYTES, count * SLOT_BYTES
            self._staging.memory[start : start + length] = rows[done : done + count].tobytes()
            ranges.append(Range(start, start, length))
            done += count
        self._position += len(rows)
        return ranges
