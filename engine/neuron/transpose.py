"""Pages that arrived as prefill's ranks hold them, put as a rank of decode holds them. Pure.

    source tp 2, HND              rows                        destination tp 4, NHD
    rank 0  heads 0-3  --.                                   .--> rank 0  heads 0-1
    rank 1  heads 4-7  --+--> [plane][token][head][bytes] ---+--> rank 1  heads 2-3 ...

The slice planner (transfer/plan) scatters bytes into their places while they travel, which
takes a piece for each run of heads and, from or to NHD, for each token. Where pieces are
dear, whole pages can travel instead, into memory that is not read yet, and decode puts them
in order with a few NumPy copies. Both ways give the same bytes.

Arrays of bytes (uint8), of one layer: [block][plane][plane_bytes], blocks in the order of the
sequence.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from pdgate.transfer.plan.agree import agree
from pdgate.transfer.plan.layout import KvLayout, LayoutOrder, Rank

Bytes = NDArray[np.uint8]


def transposed(
    pages: Sequence[Bytes], source: KvLayout, destination: KvLayout, rank: Rank
) -> Bytes:
    """What `rank` of the destination holds; a last block that is not full ends in zeros.

    `pages` are those of the source's tensor-parallel ranks, in order, with as many blocks
    each. Raises LayoutMismatch, ValueError.
    """
    agree(source, destination)
    return blocks_of(rows_of(pages, source), destination, rank)


def rows_of(pages: Sequence[Bytes], layout: KvLayout) -> Bytes:
    """[plane][token][head][row_bytes] of the whole model. Raises ValueError."""
    if len(pages) != layout.tp or len({held.shape for held in pages}) != 1:
        raise ValueError(f"as many pages from each of {layout.tp} ranks, not {len(pages)} lists")
    heads, tokens, row = layout.rank_heads, layout.block_tokens, layout.row_bytes
    parts = []
    for part in range(layout.parts):
        # Ranks that hold the same heads hold the same bytes.
        held = pages[layout.part_holders(part)[0]]
        if layout.order is LayoutOrder.HND:
            by_head = held.reshape(-1, layout.planes, heads, tokens, row)
            by_token = by_head.transpose(1, 0, 3, 2, 4)
        else:
            by_token = held.reshape(-1, layout.planes, tokens, heads, row).transpose(1, 0, 2, 3, 4)
        parts.append(by_token.reshape(layout.planes, -1, heads, row))
    return np.concatenate(parts, axis=2)


def blocks_of(rows: Bytes, layout: KvLayout, rank: Rank) -> Bytes:
    """The pages of one rank, from the rows of the whole model."""
    heads, tokens = layout.heads(rank), layout.block_tokens
    held = rows[:, :, heads.start : heads.stop]
    missing = -held.shape[1] % tokens
    full = np.pad(held, ((0, 0), (0, missing), (0, 0), (0, 0)))
    by_token = full.reshape(layout.planes, -1, tokens, len(heads), layout.row_bytes)
    axes = (1, 0, 3, 2, 4) if layout.order is LayoutOrder.HND else (1, 0, 2, 3, 4)
    pages = by_token.transpose(axes)
    return np.ascontiguousarray(pages).reshape(len(pages), layout.planes, layout.plane_bytes)
