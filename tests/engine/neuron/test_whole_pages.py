"""Pages that travel whole between engines of other splits, and are put in order by decode."""

from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import replace

import pytest

from pdgate.engine.neuron import kv_map, whole_pages
from pdgate.engine.neuron.lists import ListedPieces
from pdgate.engine.neuron.slices import Slices
from pdgate.engine.neuron.whole_pages import KEY, WholePages
from pdgate.forwarders.base import Mode
from pdgate.transfer import descriptors, registry
from pdgate.transfer.messenger.errors import HandOverError
from pdgate.transfer.messenger.shape import PageShape
from pdgate.transfer.plan.pair import BadBlocks
from tests.support.core_pairs import Crossing, Row, side
from tests.support.engine_cores import GREEDY, ask, engine, layout, tokens_of
from tests.support.engine_pair import D_BLOCKS, P_BLOCKS, arrival
from tests.support.fake_core import LAYOUT, SECONDS, FakeCore

WIDE = replace(LAYOUT, kv_heads=4)
SPLITS = [(2, 1), (1, 2), (4, 2), (2, 8), (8, 2)]
"""tp of prefill and decode; with 8 each of the four heads is there twice."""
UID = "one"


def shape(tp: int) -> PageShape:
    return PageShape.of(replace(WIDE, tp=tp), "m")


def names(split: tuple[int, int]) -> str:
    return f"{split[0]}to{split[1]}"


@pytest.mark.parametrize("split", SPLITS, ids=names)
def test_every_rank_of_decode_gets_its_heads_and_nothing_else_changes(
    split: tuple[int, int],
) -> None:
    p_layout, d_layout = (replace(WIDE, tp=tp) for tp in split)
    with (
        closing(FakeCore("shm", "neuron", "prefill", layout=p_layout)) as p,
        closing(FakeCore("shm", "neuron", "decode", layout=d_layout, whole_pages=True)) as d,
    ):
        p.prefill(arrival("p1", f"cmpl-{UID}_127.0.0.1:9"), P_BLOCKS)
        d.load(arrival("d1", f"cmpl-{UID}_127.0.0.1:{p.settings.api_port}"), D_BLOCKS)

        assert d.result() is None
        assert d.holds(D_BLOCKS, seed=1)
        untouched = set(range(WIDE.blocks)) - set(D_BLOCKS)
        assert not any(any(d.page(layer, b)) for b in untouched for layer in range(WIDE.layers))
        assert p.freed.get(timeout=SECONDS)


@pytest.mark.parametrize("split", [(1, 2), (2, 1), (4, 2), (1, 1)], ids=names)
def test_the_answer_is_the_single_engines(split: tuple[int, int]) -> None:
    """With as many ranks there is nothing to put in order, and prefill sends slices."""
    prompt = "The quick brown fox jumps over the lazy dog, and then over another."
    alone = engine()
    alone.core.start()
    expected = alone.tokens(ask("alone", prompt, GREEDY))
    alone.core.stop()
    with ExitStack() as stack:
        sides = []
        for role, tp in zip(("prefill", "decode"), split, strict=True):
            backend = stack.enter_context(closing(registry.load("tcp")))
            sides.append(side(stack, role, "neuron", backend, layout(32, 16, tp), whole_pages=True))
        prefill, decode = sides

        answer = Crossing(Row("neuron", Mode.BATCH), prefill, decode).answer(prompt, GREEDY)

        assert tokens_of(answer) == expected
        assert decode.connector.counters.transfers == 1


def pieces(listed: Sequence[ListedPieces]) -> int:
    return sum(len(one.pieces.lengths) for one in listed)


@pytest.mark.parametrize(("split", "times"), [((1, 4), 8), ((4, 1), 2), ((2, 4), 4)])
def test_there_are_fewer_pieces(split: tuple[int, int], times: int) -> None:
    """K and V of each run of heads go apart, where a page is one piece."""
    prefill, decode = map(shape, split)
    lengths = [[one.region_bytes(0)] * one.tp for one in (prefill, decode)]
    blocks, to = [3, 9, 5], [None, 8, 2]

    whole = WholePages(prefill, decode).sent(UID, blocks, to)
    slices = Slices(prefill, decode, *lengths).sent(UID, blocks, to)

    assert pieces(slices) == times * pieces(whole)


def test_both_ends_list_the_same_lengths_in_the_same_order() -> None:
    lists = WholePages(shape(2), shape(1))
    sent, received = lists.sent(UID, [3, 9], [None, 8]), lists.received(UID, [3, 9], [None, 8])

    assert [(one.ends, one.layer, one.pieces.lengths.tolist()) for one in sent] == [
        (one.ends, one.layer, one.pieces.lengths.tolist()) for one in received
    ]


def test_more_blocks_than_there_are_come_from_nowhere() -> None:
    with pytest.raises(BadBlocks, match="2 blocks to fill from 1"):
        WholePages(shape(2), shape(1)).sent(UID, [3], [8, 9])


def test_a_staging_of_another_size_is_refused() -> None:
    """Prefill would write past its end, or wonder why it cannot."""
    with closing(registry.load("shm")) as backend:
        memory = backend.allocate(shape(1).region_bytes(0))
        short = backend.allocate(64)
        said = {
            "immediate": 0,
            KEY: descriptors.as_data(short.descriptor),
        }
        data = kv_map.as_data(shape(1), [memory.descriptor], **said)
        theirs = kv_map.from_data(data, shape(2), "shm")

        with pytest.raises(HandOverError, match="staging has 64 bytes"):
            whole_pages.offered(shape(2), theirs)
        assert whole_pages.offered(shape(1), theirs) is None
