"""A plan carried out by real backends: a region per rank, counted writes, no other word."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest

from pdgate.transfer import registry
from pdgate.transfer.base import Backend, Region
from pdgate.transfer.plan import memory
from pdgate.transfer.plan.count import Rhythm
from pdgate.transfer.plan.layout import KvLayout, LayoutOrder, Rank
from pdgate.transfer.plan.links import spread
from pdgate.transfer.plan.meeting import Meeting
from tests.support import waiting
from tests.support.kv_layouts import PLAIN
from tests.support.kv_ranks import BLOCKS, Arrays, cache, share
from tests.transfer.plan.writing import expected, writes

SECONDS = waiting.PATIENCE_SECONDS
IMMEDIATE = 77
TOKENS = range(4, 26)
SOURCE_BLOCKS, BLOCKS_TO = [3, 0, 7, 8, 1, 11, 5], [9, 10, 2, 6, 0, 1, 4]
RHYTHM = Rhythm(chunk_tokens=8, by_layer=True)


@pytest.fixture(params=["shm", "tcp"])
def backends(request: pytest.FixtureRequest) -> Iterator[tuple[Backend, Backend]]:
    with (
        closing(registry.load(request.param)) as prefill,
        closing(registry.load(request.param)) as decode,
    ):
        yield prefill, decode


class Engine:
    """Every rank with a region of its own."""

    def __init__(self, layout: KvLayout, backend: Backend) -> None:
        memories = {rank: memory.packed(layout, rank, BLOCKS) for rank in layout.ranks(0)}
        self.backend = backend
        self.regions: dict[Rank, Region] = {
            rank: backend.allocate(memory.end(layout, one)) for rank, one in memories.items()
        }
        views = {
            rank: np.frombuffer(region.memory, np.uint8) for rank, region in self.regions.items()
        }
        self.arrays = Arrays(layout, memories, views)


@pytest.mark.parametrize(("order", "to_order"), [("HND", "HND"), ("NHD", "NHD"), ("NHD", "HND")])
@pytest.mark.parametrize("tp", [(1, 1), (2, 1), (1, 2), (4, 2), (8, 2), (2, 8)])
def test_a_push_by_layer_and_chunk_is_complete_when_the_count_is(
    backends: tuple[Backend, Backend], tp: tuple[int, int], order: str, to_order: str
) -> None:
    """The source writes in its own order; each destination rank waits for a number alone."""
    layout = replace(PLAIN, order=LayoutOrder(order), tp=tp[0], stages=(1, 2))
    to_layout = replace(PLAIN, order=LayoutOrder(to_order), tp=tp[1], stages=(3,))
    content = cache(layout, TOKENS.stop)
    choose = spread("call")
    prefill, decode = Engine(layout, backends[0]), Engine(to_layout, backends[1])
    prefill.arrays.fill(SOURCE_BLOCKS, content)
    meeting = Meeting(prefill.arrays.end, decode.arrays.end)

    waiting = [
        decode.backend.expect(
            region, IMMEDIATE, expected(layout, to_layout, rank, TOKENS, RHYTHM), SECONDS
        )
        for rank, region in decode.regions.items()
    ]
    for at, region in prefill.regions.items():
        pairs = (pair for rank in decode.regions for pair in meeting.to(rank, choose))
        for pair in (one for one in pairs if one.link.source == at):
            to = decode.regions[pair.link.destination].descriptor
            for tokens, layers in writes(pair.link, TOKENS, RHYTHM):
                ranges = pair.segments(SOURCE_BLOCKS, BLOCKS_TO, tokens, layers).writes()
                prefill.backend.write(region, to, ranges, SECONDS, IMMEDIATE)
    for one in waiting:
        one.wait(SECONDS)

    content[:, :, :, : TOKENS.start] = 0
    for rank in decode.regions:
        got = decode.arrays.gather(BLOCKS_TO, rank, TOKENS.stop)
        assert np.array_equal(got, share(to_layout, rank, content))


@pytest.mark.parametrize("tp", [(1, 1), (2, 1), (1, 2), (4, 2), (8, 2), (2, 8)])
def test_a_pull_reads_each_share_where_it_is(
    backends: tuple[Backend, Backend], tp: tuple[int, int]
) -> None:
    layout = replace(PLAIN, tp=tp[0])
    to_layout = replace(PLAIN, tp=tp[1], block_tokens=8)
    content = cache(layout, TOKENS.stop)
    prefill, decode = Engine(layout, backends[0]), Engine(to_layout, backends[1])
    prefill.arrays.fill(SOURCE_BLOCKS, content)
    meeting = Meeting(prefill.arrays.end, decode.arrays.end)

    for rank, region in decode.regions.items():
        for pair in meeting.to(rank, spread("call")):
            source = prefill.regions[pair.link.source].descriptor
            ranges = pair.segments(SOURCE_BLOCKS, BLOCKS_TO, TOKENS).reads()
            decode.backend.read(region, source, ranges, SECONDS).wait(SECONDS)

    content[:, :, :, : TOKENS.start] = 0
    for rank in decode.regions:
        got = decode.arrays.gather(BLOCKS_TO, rank, TOKENS.stop)
        assert np.array_equal(got, share(to_layout, rank, content))
