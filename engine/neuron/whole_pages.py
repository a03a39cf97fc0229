"""Pages travel whole, as prefill's ranks hold them, and decode puts them in order on arrival.

    P, tp 2                 D's staging, block 7                    D, tp 1
    rank 0  page 12  -----> [layer 0][share 0] --.
    rank 1  page 12  -----> [layer 0][share 1] --+-- transpose.py --> layer 0, page 7, all heads

One piece for each page instead of one for each run of heads: for engines whose pieces are dear,
as the runtime's are, of which 128 may be pending. It costs decode as much memory again as its
KV cache has: each of its blocks has a place of its own in the staging, so that requests, which
never share a block that is being filled, need not share a place either, of whichever P.

D offers its staging in its KV map, and P accepts if the two split the heads differently; a P
that knows nothing of it sends slices. Each share of the heads comes from the first rank that
has it.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pdgate.engine.neuron.kv_map import KvMap, layout_of
from pdgate.engine.neuron.lists import ListedPieces, to_fill
from pdgate.engine.neuron.posts import PostPieces
from pdgate.engine.neuron.transpose import Bytes, transposed
from pdgate.transfer import descriptors
from pdgate.transfer.base import Descriptor, Region
from pdgate.transfer.messenger.errors import HandOverError, Why
from pdgate.transfer.messenger.shape import PageShape
from pdgate.transfer.plan.layout import KvLayout

KEY: Final = "whole_pages"
"""In D's KV map the descriptor of its staging, in P's that it accepts."""


def staging(shape: PageShape, allocate: Callable[[int], Region]) -> Region:
    """Staging memory of decode: a place for each of its blocks, with all layers and heads."""
    return allocate(shape.blocks * _block_bytes(shape))


def offered(prefill: PageShape, theirs: KvMap) -> Descriptor | None:
    """Decode's staging as P gets it; None if it has none, or needs none. Raises HandOverError."""
    said = theirs.extra.get(KEY)
    if said is None or prefill.tp == theirs.shape.tp:
        return None
    try:
        found = descriptors.from_data(said)
    except ValueError as error:
        raise HandOverError(Why.BROKEN, f"the peer's staging is {error}") from None
    if found.length != theirs.shape.blocks * _block_bytes(theirs.shape):
        raise HandOverError(Why.WRONG_SHAPE, f"the peer's staging has {found.length} bytes")
    return found


class WholePages:
    def __init__(self, prefill: PageShape, decode: PageShape) -> None:
        """Raises HandOverError."""
        self._prefill, self._decode = prefill, decode
        self._block_bytes = _block_bytes(decode)
        self._source, self._destination = map(_one_layer, (prefill, decode))
        self._holders = [self._source.part_holders(n)[0] for n in range(self._source.parts)]
        self.ends = [(rank, 0) for rank in self._holders]

    def sent(self, uid: str, blocks: Sequence[int], to: Sequence[int | None]) -> list[ListedPieces]:
        there, fill = to_fill(blocks, to)
        ours = np.asarray(blocks[there : there + len(fill)], np.int64)
        page, count = self._prefill.page_bytes, self._prefill.blocks
        return self._listed(lambda layer, _: (layer * count + ours) * page)

    def received(
        self, uid: str, of: Sequence[int], blocks: Sequence[int | None]
    ) -> list[ListedPieces]:
        _, fill = to_fill(of, blocks)
        return self._listed(lambda layer, share: self._places(fill, layer, share))

    def put_in_order(
        self, arrived: Region, regions: Sequence[Region], blocks: Sequence[int | None]
    ) -> None:
        """What has been received for these blocks goes into the pages of each rank."""
        fill = [block for block in blocks if block is not None]
        staged = np.frombuffer(arrived.memory, np.uint8)
        memories = [
            np.frombuffer(region.memory, np.uint8)[: self._decode.region_bytes(0)].reshape(
                self._decode.layers, self._decode.blocks, self._decode.page_bytes
            )
            for region in regions
        ]
        for layer in range(self._decode.layers):
            shares = [self._pages(staged, fill, layer, n) for n in range(len(self._holders))]
            pages = [shares[tp // self._source.replicas] for tp in range(self._source.tp)]
            for rank in self._destination.ranks(0):
                held = transposed(pages, self._source, self._destination, rank)
                memories[rank.tp][layer, fill] = held.reshape(len(fill), -1)

    def _listed(self, offsets: Callable[[int, int], NDArray[np.int64]]) -> list[ListedPieces]:
        """`offsets` of a layer and a share of the heads."""
        listed = []
        for layer in range(self._prefill.layers):
            for share, ends in enumerate(self.ends):
                at = offsets(layer, share)
                lengths = np.full(len(at), self._prefill.page_bytes, np.int64)
                listed.append(ListedPieces(ends, PostPieces(at, lengths), layer))
        return listed

    def _places(self, blocks: Sequence[int], layer: int, share: int) -> NDArray[np.int64]:
        """Where the pages of a share come to lie in the staging."""
        of_block = (layer * len(self._holders) + share) * self._prefill.page_bytes
        return np.asarray(blocks, np.int64) * self._block_bytes + of_block

    def _pages(
        self, staged: NDArray[np.uint8], blocks: Sequence[int], layer: int, share: int
    ) -> Bytes:
        first = self._places(blocks, layer, share)
        bytes_of = first[:, None] + np.arange(self._prefill.page_bytes)
        pages: Bytes = staged[bytes_of].reshape(len(blocks), self._source.planes, -1)
        return pages


def _block_bytes(shape: PageShape) -> int:
    """Of a block with all layers and heads, however many ranks hold them."""
    layout = layout_of(shape)
    return shape.layers * layout.planes * layout.parts * layout.plane_bytes


def _one_layer(shape: PageShape) -> KvLayout:
    return replace(layout_of(shape), stages=(1,))
