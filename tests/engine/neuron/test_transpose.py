"""Putting whole pages in order gives what the slice planner would have written."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdgate.engine.neuron.transpose import Bytes, transposed
from pdgate.transfer.plan.agree import LayoutMismatch
from pdgate.transfer.plan.layout import KvLayout, LayoutOrder, Rank
from pdgate.transfer.plan.meeting import EngineReplica, Meeting
from pdgate.transfer.plan.memory import packed
from tests.support.kv_layouts import PLAIN, engines

ROUNDS = 2
"""How many times both sides' blocks end together."""


def one_layer(layout: KvLayout) -> KvLayout:
    return replace(layout, stages=(1,))


def pages_of(layout: KvLayout, tokens: int, seed: int) -> list[Bytes]:
    """Random, but ranks that hold the same heads hold the same bytes."""
    random = np.random.default_rng(seed)
    shape = (tokens // layout.block_tokens, layout.planes, layout.plane_bytes)
    parts = [random.integers(0, 256, shape, np.uint8) for _ in range(layout.parts)]
    return [parts[tp // layout.replicas] for tp in range(layout.tp)]


def end(layout: KvLayout, blocks: int) -> EngineReplica:
    memories = {rank: packed(layout, rank, blocks) for rank in layout.ranks(0)}
    length = blocks * layout.planes * layout.plane_bytes
    return EngineReplica(layout, 0, memories, dict.fromkeys(memories, length))


def planned(
    pages: list[Bytes], source: KvLayout, destination: KvLayout, rank: Rank, tokens: int
) -> Bytes:
    """What the planner's segments bring, for blocks that lie in order on both sides."""
    ours, theirs = (list(range(tokens // at.block_tokens)) for at in (source, destination))
    meeting = Meeting(end(source, len(ours)), end(destination, len(theirs)))
    filled = np.zeros((len(theirs), destination.planes, destination.plane_bytes), np.uint8)
    memory = filled.reshape(-1)
    for pair in meeting.to(rank, lambda _, holders: holders[-1]):
        held = pages[pair.link.source.tp].reshape(-1)
        for run in pair.segments(ours, theirs, range(tokens)).writes():
            memory[run.remote : run.remote + run.length] = held[run.local : run.local + run.length]
    return filled


@given(engines(), st.integers(0, 2**32 - 1))
def test_both_ways_give_the_same_bytes(both: tuple[KvLayout, KvLayout], seed: int) -> None:
    """Other numbers of ranks, heads that several ranks hold, HND and NHD, other block sizes."""
    source, destination = map(one_layer, both)
    tokens = ROUNDS * math.lcm(source.block_tokens, destination.block_tokens)
    pages = pages_of(source, tokens, seed)

    for rank in destination.ranks(0):
        found = transposed(pages, source, destination, rank)
        assert np.array_equal(found, planned(pages, source, destination, rank, tokens))


@given(engines(), st.integers(0, 2**32 - 1))
def test_there_and_back_again_changes_nothing(both: tuple[KvLayout, KvLayout], seed: int) -> None:
    source, destination = map(one_layer, both)
    tokens = ROUNDS * math.lcm(source.block_tokens, destination.block_tokens)
    pages = pages_of(source, tokens, seed)

    there = [transposed(pages, source, destination, rank) for rank in destination.ranks(0)]
    back = [transposed(there, destination, source, rank) for rank in source.ranks(0)]

    assert all(np.array_equal(*both) for both in zip(back, pages, strict=True))


def test_a_last_block_that_is_not_full_ends_in_zeros() -> None:
    source = replace(one_layer(PLAIN), block_tokens=2)
    destination = replace(source, block_tokens=4)
    pages = pages_of(source, tokens=6, seed=1)

    found = transposed(pages, source, destination, Rank(0, 0, 0))

    by_head = found.reshape(2, 2, 4, 4, -1)
    assert by_head[1, :, :, :2].any()
    assert not by_head[1, :, :, 2:].any()


def test_other_models_are_refused() -> None:
    source = one_layer(PLAIN)
    pages = pages_of(source, tokens=4, seed=1)

    with pytest.raises(LayoutMismatch, match="head_dim"):
        transposed(pages, source, replace(source, head_dim=2), Rank(0, 0, 0))


@pytest.mark.parametrize("tp", [1, 4])
def test_pages_of_other_ranks_than_there_are_are_refused(tp: int) -> None:
    source = replace(one_layer(PLAIN), tp=2, order=LayoutOrder.NHD)
    pages = pages_of(replace(source, tp=tp), tokens=4, seed=1)

    with pytest.raises(ValueError, match="each of 2 ranks"):
        transposed(pages, source, one_layer(PLAIN), Rank(0, 0, 0))
