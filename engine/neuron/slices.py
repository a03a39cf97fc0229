"""Every piece travels to the place where decode wants it, as the planner cuts them.

Layer by layer, and within a layer pair of ranks by pair of ranks.
"""

from collections.abc import Sequence

from pdgate.engine.neuron.kv_map import Scheme
from pdgate.engine.neuron.lists import Ends, ListedPieces, to_fill
from pdgate.engine.neuron.posts import PostPieces
from pdgate.transfer.messenger.shape import PageShape
from pdgate.transfer.plan.segments import Segments


class Slices:
    def __init__(
        self,
        prefill: PageShape,
        decode: PageShape,
        prefill_bytes: Sequence[int],
        decode_bytes: Sequence[int],
    ) -> None:
        """`_bytes`: of each rank's region. Raises HandOverError."""
        self._scheme = Scheme(prefill, decode, prefill_bytes, decode_bytes)
        self.ends = [(p, d) for p in range(prefill.tp) for d in range(decode.tp)]

    def sent(self, uid: str, blocks: Sequence[int], to: Sequence[int | None]) -> list[ListedPieces]:
        return [
            ListedPieces(ends, PostPieces(segments.source, segments.length), layer)
            for ends, segments, layer in self._parts(uid, blocks, to)
        ]

    def received(
        self, uid: str, of: Sequence[int], blocks: Sequence[int | None]
    ) -> list[ListedPieces]:
        return [
            ListedPieces(ends, PostPieces(segments.destination, segments.length), layer)
            for ends, segments, layer in self._parts(uid, of, blocks)
        ]

    def _parts(
        self, uid: str, source: Sequence[int], destination: Sequence[int | None]
    ) -> list[tuple[Ends, Segments, int]]:
        """(ends, what moves, layer). Raises BadBlocks."""
        there, to = to_fill(source, destination)
        if not to:
            return []
        scheme = self._scheme
        # What precedes is not looked at; both lists hold a sequence from its token 0 on.
        wanted = [0] * there + to
        tokens = range(there * scheme.block_tokens, len(wanted) * scheme.block_tokens)
        return [
            (
                (pair.link.source.tp, pair.link.destination.tp),
                pair.segments(source, wanted, tokens, range(layer, layer + 1)),
                layer,
            )
            for layer in range(scheme.layers)
            for pair in scheme.pairs(uid)
        ]
