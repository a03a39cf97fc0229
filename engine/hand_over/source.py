"""Where the pages of a request come from, and which ranges that means."""

from collections.abc import Sequence
from dataclasses import dataclass

from pdgate.engine.hand_over.errors import HandOverError, Why
from pdgate.engine.layout import Layout
from pdgate.transfer.base import Range


@dataclass(frozen=True, slots=True)
class Source:
    """
    Attributes:
        host, port: Of the KV service, unless `bootstrap`.
        key: Under which prefill offers the pages.
        wait_seconds: 0 if they must be there already.
        engine_id: Who has to answer; empty for whoever is there.
        bootstrap: The address is that of a bootstrap server, which knows the service's.
        rank: Data-parallel rank of the prefill engine, for its bootstrap server.
        block_ids: Read these instead of the blocks that the offer names.
        prompt: Ask the peer to compute it first; empty if somebody else has asked.
    """

    host: str
    port: int
    key: str
    wait_seconds: float
    engine_id: str = ""
    bootstrap: bool = False
    rank: int = 0
    block_ids: tuple[int, ...] | None = None
    prompt: tuple[int, ...] = ()


def reads(
    ours: Layout, theirs: Layout, to: Sequence[int], source: Sequence[int], skip: int
) -> list[Range]:
    """One range per layer and block, `skip` blocks left out. Raises HandOverError.

    Layer by layer, so that neighbouring blocks become one range.
    """
    if len(source) < len(to):
        raise HandOverError(Why.TOO_SHORT, f"{len(source)} blocks offered, {len(to)} needed")
    pairs = list(zip(to, source, strict=False))[skip:]
    for _, block_id in pairs:
        if not 0 <= block_id < theirs.blocks:
            raise HandOverError(
                Why.BAD_BLOCKS, f"block {block_id} of a peer that has {theirs.blocks}"
            )
    return [
        Range(ours.page_offset(layer, mine), theirs.page_offset(layer, its), ours.page_bytes)
        for layer in range(ours.layers)
        for mine, its in pairs
    ]
