"""All communicators between one P and one D, and what of a request goes over which.

Both ends post the same lists in the same order: layer by layer, and within a layer pair of
ranks by pair of ranks. So P may begin with the first layers while it computes the last ones
(a gate for each), and D need not know whether it does.
"""

from collections.abc import Callable, Sequence
from typing import Final

from pdgate.engine.neuron.communicator import RING_BYTES, Receiver, Sender
from pdgate.engine.neuron.ground import Ground
from pdgate.engine.neuron.kv_map import KvMap, Scheme
from pdgate.engine.neuron.posts import CompletionToken, Gate, Pieces
from pdgate.transfer.base import Region, TransferError
from pdgate.transfer.messenger.shape import Shape
from pdgate.transfer.plan.pair import BadBlocks, Pair
from pdgate.transfer.plan.segments import Segments

Ends = tuple[int, int]
"""Tensor-parallel rank of P, and of D."""

IMMEDIATES: Final = 128
"""That D sets aside for a P: one for each of its ranks."""


def ring_bytes(prefill: Shape, decode: Shape) -> int:
    return prefill.tp * decode.tp * RING_BYTES


class SendEngine:
    """P's end of a pairing.

    Args:
        ring: Ours, `ring_bytes` long.
    """

    def __init__(
        self, ground: Ground, ours: Shape, regions: Sequence[Region], theirs: KvMap, ring: Region
    ) -> None:
        """Raises HandOverError."""
        self._scheme = _scheme(ours, theirs, [region.descriptor.length for region in regions])
        self._ring = ring
        first = theirs.immediate()
        self._ends = {
            (p, d): Sender(
                ground,
                regions[p],
                theirs.memory[d],
                first + p,
                ring,
                number * RING_BYTES,
                number,
            )
            for number, (p, d) in enumerate(_all_ends(ours, theirs.shape))
        }

    def send(
        self,
        uid: str,
        blocks: Sequence[int],
        to: Sequence[int | None],
        gates: Sequence[Gate],
        token: CompletionToken,
    ) -> None:
        """`blocks` are ours, `to` are D's; a gate per layer. Raises BadBlocks, nothing posted."""
        for ends, segments, layer in _parts(self._scheme, uid, blocks, to):
            self._ends[ends].post(Pieces(segments.source, segments.length), token, gates[layer])

    def pump(self) -> None:
        for end in self._ends.values():
            end.pump()

    def end(self, error: TransferError) -> None:
        for sender in self._ends.values():
            sender.end(error)

    @property
    def error(self) -> TransferError | None:
        return next((end.error for end in self._ends.values() if end.error is not None), None)

    @property
    def settled(self) -> bool:
        return all(end.settled for end in self._ends.values())

    def close(self) -> None:
        """After it has ended."""
        self._ring.close()


class ReceiveEngine:
    """D's end of a pairing.

    Args:
        immediate: The first of IMMEDIATES that nobody else uses.
        allocate: Makes memory of the backend's.
    """

    def __init__(
        self,
        ground: Ground,
        ours: Shape,
        regions: Sequence[Region],
        theirs: KvMap,
        immediate: int,
        allocate: Callable[[int], Region],
        landing_seconds: float,
    ) -> None:
        """Raises HandOverError, TransferError, OSError."""
        lengths = [region.descriptor.length for region in regions]
        prefill = [one.length for one in theirs.memory]
        self._scheme = Scheme(theirs.shape, ours, prefill, lengths)
        ring = theirs.ring()
        self._staging = allocate(ring_bytes(theirs.shape, ours))
        self._ends = {
            (p, d): Receiver(
                ground,
                regions[d],
                immediate + p,
                self._staging,
                ring,
                number * RING_BYTES,
                number,
                landing_seconds,
            )
            for number, (p, d) in enumerate(_all_ends(theirs.shape, ours))
        }

    def receive(
        self,
        uid: str,
        blocks: Sequence[int | None],
        of: Sequence[int],
        token: CompletionToken,
    ) -> None:
        """`blocks` are ours, `of` are P's. Raises BadBlocks, nothing posted."""
        for ends, segments, _ in _parts(self._scheme, uid, of, blocks):
            self._ends[ends].post(Pieces(segments.destination, segments.length), token)

    def pump(self) -> None:
        for end in self._ends.values():
            end.pump()

    def end(self, error: TransferError) -> None:
        for receiver in self._ends.values():
            receiver.end(error)

    def close(self) -> None:
        """After it has ended."""
        self._staging.close()


def _scheme(ours: Shape, theirs: KvMap, lengths: Sequence[int]) -> Scheme:
    return Scheme(ours, theirs.shape, lengths, [one.length for one in theirs.memory])


def _all_ends(prefill: Shape, decode: Shape) -> list[Ends]:
    return [(p, d) for p in range(prefill.tp) for d in range(decode.tp)]


def _parts(
    scheme: Scheme, uid: str, source: Sequence[int], destination: Sequence[int | None]
) -> list[tuple[Ends, Segments, int]]:
    """(ends, what moves, layer), the same at both ends. Raises BadBlocks."""
    if len(destination) > len(source):
        raise BadBlocks(f"{len(destination)} blocks to fill from {len(source)}")
    there = next((n for n, one in enumerate(destination) if one is not None), len(destination))
    to = [one for one in destination[there:] if one is not None]
    if there + len(to) != len(destination):
        raise BadBlocks("blocks that are there already come first")
    if not to:
        return []
    # What precedes is not looked at; both lists hold a sequence from its token 0 on.
    wanted = [0] * there + to
    tokens = range(there * scheme.block_tokens, len(wanted) * scheme.block_tokens)
    return [
        (_ends_of(pair), pair.segments(source, wanted, tokens, range(layer, layer + 1)), layer)
        for layer in range(scheme.layers)
        for pair in scheme.pairs(uid)
    ]


def _ends_of(pair: Pair) -> Ends:
    return pair.link.source.tp, pair.link.destination.tp
