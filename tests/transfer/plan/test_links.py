"""Every head and layer of every destination rank, from exactly one source rank."""

from collections import Counter
from dataclasses import replace

import pytest

from pdgate.transfer.plan.layout import Rank
from pdgate.transfer.plan.links import links_to, spread
from tests.support.kv_layouts import HEADS, PLAIN, layouts


@pytest.mark.parametrize("heads", HEADS)
def test_every_head_comes_from_one_rank_that_has_it(heads: int) -> None:
    for source, destination in layouts(heads):
        for to in destination.ranks(0):
            links = list(links_to(source, 0, destination, to, spread("k")))

            arriving = [head for link in links for head in link.heads]
            assert sorted(arriving) == list(destination.heads(to))
            assert all(set(link.heads) <= set(source.heads(link.source)) for link in links)
            assert len({link.source for link in links}) == len(links)


@pytest.mark.parametrize(("source_tp", "destination_tp"), [(1, 1), (2, 1), (1, 2), (4, 2), (2, 8)])
def test_powers_of_two_meet_as_often_as_the_larger_has_ranks(
    source_tp: int, destination_tp: int
) -> None:
    source = replace(PLAIN, kv_heads=8, tp=source_tp)
    destination = replace(source, tp=destination_tp)

    links = [
        link
        for to in destination.ranks(0)
        for link in links_to(source, 0, destination, to, spread("k"))
    ]

    assert len(links) == max(source_tp, destination_tp)


def test_sizes_that_do_not_divide_each_other_meet_where_their_heads_do() -> None:
    source = replace(PLAIN, kv_heads=6, tp=3)
    destination = replace(source, tp=2)

    links = list(links_to(source, 0, destination, Rank(0, 0, 1), spread("k")))

    assert [(link.source.tp, link.heads) for link in links] == [(1, range(3, 4)), (2, range(4, 6))]


def test_stages_meet_where_their_layers_do() -> None:
    source = replace(PLAIN, stages=(3, 3, 2))
    destination = replace(PLAIN, stages=(4, 4))

    links = list(links_to(source, 0, destination, Rank(0, 1, 0), spread("k")))

    assert [(link.source.stage, link.layers) for link in links] == [
        (1, range(4, 6)),
        (2, range(6, 8)),
    ]


def test_replicated_sources_are_all_used_and_any_choice_covers() -> None:
    """One head on eight ranks: which of them sends is the choice's."""
    source = replace(PLAIN, kv_heads=1, planes=1, tp=8)
    destination = replace(source, tp=2)
    to = Rank(0, 0, 1)

    used = Counter(
        link.source.tp
        for call in range(800)
        for link in links_to(source, 0, destination, to, spread(f"call-{call}"))
    )

    assert sum(used.values()) == 800
    assert set(used) == set(range(8))
    assert max(used.values()) < 200


def test_one_call_spreads_over_the_replicas_of_each_head_by_itself() -> None:
    """Neither its destinations nor its heads go hand in hand."""
    source = replace(PLAIN, kv_heads=2, tp=16)
    destination = replace(PLAIN, kv_heads=2)
    choose = spread("call")
    many = replace(source, kv_heads=1, planes=1)

    by_destination = {choose(Rank(0, 0, tp), many.part_holders(0)) for tp in range(64)}
    by_head = {
        tuple(link.source.tp % 8 for link in links_to(source, 0, destination, to, spread(key)))
        for key in map(str, range(64))
        for to in destination.ranks(0)
    }

    assert by_destination == set(range(16))
    assert any(first != second for first, second in by_head)


def test_the_choice_can_be_given() -> None:
    source = replace(PLAIN, kv_heads=2, tp=8)
    to = Rank(0, 0, 0)

    links = links_to(source, 0, replace(PLAIN, kv_heads=2), to, lambda _, holders: holders[-1])

    assert [link.source.tp for link in links] == [3, 7]


def test_a_call_stays_in_one_data_parallel_replica_of_each_side() -> None:
    source = replace(PLAIN, dp=3)
    destination = replace(PLAIN, dp=2)

    (link,) = links_to(source, 2, destination, Rank(1, 0, 0), spread("k"))

    assert (link.source, link.destination) == (Rank(2, 0, 0), Rank(1, 0, 0))


@pytest.mark.parametrize("dp", [-1, 3])
def test_a_replica_that_does_not_exist_is_refused(dp: int) -> None:
    layout = replace(PLAIN, dp=3)

    with pytest.raises(IndexError, match="of 3"):
        list(links_to(layout, dp, layout, Rank(0, 0, 0), spread("k")))
    with pytest.raises(IndexError, match="of 3"):
        list(layout.ranks(dp))
