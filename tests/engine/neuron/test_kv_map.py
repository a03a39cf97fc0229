"""KV maps survive JSON, and what does not fit is refused with both sides' numbers."""

import json
from typing import Any

import pytest

from pdgate.engine.layout import Layout
from pdgate.engine.neuron import kv_map
from pdgate.transfer.base import Descriptor
from pdgate.transfer.messenger.errors import HandOverError
from pdgate.transfer.messenger.shape import PageShape

MODEL = Layout(layers=3, blocks=16, kv_heads=4, block_tokens=4, head_dim=8)


def shape(tp: int = 1, model: str = "m", **other: Any) -> PageShape:
    fields = {name: getattr(MODEL, name) for name in Layout.__slots__}
    return PageShape.of(Layout(**{**fields, "tp": tp, **other}), model)


def memory(count: int) -> list[Descriptor]:
    return [Descriptor("tcp", f"{n:032x}", 1 << 20, {"host": "h", "port": 1}) for n in range(count)]


def travelled(data: object) -> Any:
    return json.loads(json.dumps(data))


@pytest.mark.parametrize(
    ("tp", "heads"),
    [
        (1, {0: [0, 1, 2, 3]}),
        (2, {0: [0, 1], 1: [2, 3]}),
        (8, {rank: [rank // 2] for rank in range(8)}),
    ],
)
def test_ranks_are_numbers_again_after_json(tp: int, heads: dict[int, list[int]]) -> None:
    assert kv_map.heads_of(travelled(kv_map.as_data(shape(tp), memory(tp)))) == heads


def test_twelve_ranks_keep_their_order() -> None:
    """As strings, "10" comes before "2"."""
    data = kv_map.as_data(shape(12, kv_heads=12), memory(12))

    assert kv_map.heads_of(travelled(data)) == {rank: [rank] for rank in range(12)}


def test_a_map_travels_whole() -> None:
    data = travelled(kv_map.as_data(shape(2), memory(2), immediate=256))

    found = kv_map.from_data(data, shape(1), "tcp")

    assert (found.shape, list(found.memory), found.immediate()) == (shape(2), memory(2), 256)


@pytest.mark.parametrize(
    ("theirs", "said"),
    [
        (shape(head_dim=16), "wrong layout: head_dim 8 here, 16 there"),
        (shape(layers=4), "wrong layout: layers 3 here, 4 there"),
        (shape(model="n"), "wrong layout: model m here, n there"),
        (shape(block_tokens=8), "wrong layout: block_tokens 4 here, 8 there"),
    ],
)
def test_what_does_not_fit_is_named(theirs: PageShape, said: str) -> None:
    data = travelled(kv_map.as_data(theirs, memory(theirs.tp)))

    with pytest.raises(HandOverError, match=said):
        kv_map.from_data(data, shape(), "tcp")


def test_heads_that_contradict_the_shape_are_refused() -> None:
    data = travelled(kv_map.as_data(shape(2), memory(2)))
    data["heads"] = {"0": [0, 1, 2], "1": [3]}

    with pytest.raises(HandOverError, match="are not tp 2's"):
        kv_map.from_data(data, shape(), "tcp")


def test_the_originals_map_is_understood_and_its_transport_named() -> None:
    original = {"version": "0.1", "heads": {"0": [0, 1], "1": [2, 3]}}

    assert kv_map.heads_of(original) == {0: [0, 1], 1: [2, 3]}
    with pytest.raises(HandOverError, match="moves KV by the Neuron runtime"):
        kv_map.from_data(original, shape(), "tcp")


@pytest.mark.parametrize(
    "data",
    [
        None,
        [],
        {},
        {"version": "0.2", "heads": {}},
        {"version": "0.1", "heads": {"a": [0]}},
        {"version": "0.1", "heads": {"0": 7}},
        {"version": "0.1", "heads": {"0": [0, 1, 2, 3]}, "pdgate": {"shape": 3, "memory": []}},
        {"version": "0.1", "heads": {"0": [0]}, "pdgate": {"shape": {}, "memory": [{}]}},
    ],
)
def test_nonsense_is_refused(data: object) -> None:
    with pytest.raises(HandOverError):
        kv_map.from_data(data, shape(), "tcp")


@pytest.mark.parametrize("tp", [0, -1, 10**9])
def test_a_peer_cannot_make_us_plan_for_any_number_of_ranks(tp: int) -> None:
    data = travelled(kv_map.as_data(shape(), memory(1)))
    data["pdgate"]["shape"]["tp"] = tp

    with pytest.raises(HandOverError):
        kv_map.from_data(data, shape(), "tcp")


@pytest.mark.parametrize("immediate", [None, -1, 2**32, True, "7"])
def test_an_immediate_is_a_number_with_room_behind_it(immediate: object) -> None:
    data = travelled(kv_map.as_data(shape(), memory(1), immediate=immediate))

    with pytest.raises(HandOverError, match="immediate"):
        kv_map.from_data(data, shape(), "tcp").immediate()


@pytest.mark.parametrize("split", [(1, 2), (4, 2), (8, 2), (2, 8)])
def test_both_ends_name_the_same_pairs_in_the_same_order(split: tuple[int, int]) -> None:
    prefill, decode = (shape(tp) for tp in split)
    lengths = [[1 << 20] * tp for tp in split]

    ends = [kv_map.Scheme(prefill, decode, *lengths).pairs("uid") for _ in range(2)]

    assert [pair.link for pair in ends[0]] == [pair.link for pair in ends[1]]
    heads = [head for pair in ends[0] for head in pair.link.heads]
    assert sorted(heads) == sorted([*range(4)] * max(1, split[1] // 4))
