"""Memory of one rank: where its pages lie in its region.

    offset(layer, plane, block) = layer_offsets[layer] + plane * plane_stride + block * block_stride

Three strides cover what engines do: [layer][block][K, V] (`packed`), K and V each in a
stretch of their own, and all layers of a block together.
"""

from dataclasses import dataclass

from pdgate.transfer.base import OutOfBounds
from pdgate.transfer.plan.layout import KvLayout, Rank


@dataclass(frozen=True, slots=True)
class RankMemory:
    """Offsets and strides in bytes.

    Attributes:
        blocks: How many there are; a block has the same id in every layer.
        layer_offsets: Of the rank's own layers, first to last.
        plane_stride: From K to V of the same block.
        block_stride: From one block to the next.
    """

    blocks: int
    layer_offsets: tuple[int, ...]
    plane_stride: int
    block_stride: int


def packed(layout: KvLayout, rank: Rank, blocks: int) -> RankMemory:
    """[layer][block][plane]: a page of K and V is one run, and so are pages in a row."""
    page_bytes = layout.planes * layout.plane_bytes
    layers = len(layout.layers_of(rank))
    offsets = tuple(layer * blocks * page_bytes for layer in range(layers))
    return RankMemory(blocks, offsets, layout.plane_bytes, page_bytes)


def end(layout: KvLayout, memory: RankMemory) -> int:
    """Bytes that the region must have."""
    return (
        max(memory.layer_offsets)
        + (layout.planes - 1) * memory.plane_stride
        + (memory.blocks - 1) * memory.block_stride
        + layout.plane_bytes
    )


def check(layout: KvLayout, rank: Rank, memory: RankMemory | None, region_bytes: int) -> None:
    """Raises OutOfBounds if pages lie outside the region, or the layers are not the rank's."""
    if memory is None:
        raise OutOfBounds(f"{rank} has no memory")
    layers = len(layout.layers_of(rank))
    if len(memory.layer_offsets) != layers:
        raise OutOfBounds(f"{len(memory.layer_offsets)} layer offsets for {layers} layers")
    smallest = min(*memory.layer_offsets, memory.plane_stride, memory.block_stride)
    if smallest < 0 or memory.blocks < 1:
        raise OutOfBounds(f"negative offsets or no blocks: {memory}")
    if end(layout, memory) > region_bytes:
        raise OutOfBounds(
            f"{memory.blocks} blocks of {layers} layers end at byte {end(layout, memory)} "
            f"of a region that has {region_bytes}"
        )
