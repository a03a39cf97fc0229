"""Two engines that keep their KV differently hand it over token for token, in every mode.

D knows how many writes there will be from the two shapes alone: a count that is too low ends a
load with pages missing, one that is too high never ends it.
"""

from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest

from pdgate.transfer.messenger import incoming
from pdgate.transfer.plan.layout import KvLayout, LayoutOrder
from tests.support.kv_backends import require
from tests.support.kv_layouts import PLAIN
from tests.transfer.messenger.nodes import SECONDS, Node

TOKENS = 26
HND = replace(PLAIN, stages=(3,), head_dim=2)
NHD = replace(HND, order=LayoutOrder.NHD)
LATENT = replace(HND, kv_heads=1, planes=1)
BIG = replace(HND, block_tokens=8)

PAIRS = {
    "NHD": (NHD, NHD),
    "NHD, tp 2 to 1": (replace(NHD, tp=2), NHD),
    "NHD, tp 1 to 2": (NHD, replace(NHD, tp=2)),
    "NHD, tp 4 to 2": (replace(NHD, tp=4), replace(NHD, tp=2)),
    "NHD to HND": (NHD, HND),
    "HND to NHD, tp 1 to 4": (HND, replace(NHD, tp=4)),
    "blocks of 8 to 4": (BIG, HND),
    "blocks of 4 to 8": (HND, BIG),
    "blocks of 4 to 8, tp 2 to 1": (replace(HND, tp=2), BIG),
    "NHD blocks of 8 to 4, tp 1 to 2": (replace(NHD, block_tokens=8), replace(NHD, tp=2)),
    "stages 1, 2 to one": (replace(HND, stages=(1, 2)), HND),
    "one stage to 2, 1": (HND, replace(HND, stages=(2, 1))),
    "stages 1, 2 to 2, 1": (replace(HND, stages=(1, 2)), replace(HND, stages=(2, 1))),
    "stages 1, 1, 1 and tp 2 to tp 4": (
        replace(HND, stages=(1, 1, 1), tp=2),
        replace(HND, tp=4),
    ),
    "latent, tp 4 to 1": (replace(LATENT, tp=4), LATENT),
    "latent, tp 1 to 4": (LATENT, replace(LATENT, tp=4)),
    "latent, tp 4 to 2": (replace(LATENT, tp=4), replace(LATENT, tp=2)),
    "all at once": (
        replace(NHD, tp=2, stages=(1, 2), block_tokens=8),
        replace(HND, tp=8, stages=(2, 1)),
    ),
}
MODES: dict[str, dict[str, Any]] = {
    "pull": {"push": False},
    "push after prefill": {"by_layer": False},
    "push by layer": {},
}


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a prompt takes several, of which the last is not full."""
    monkeypatch.setattr(incoming, "TILE_TOKENS", 8)


def hand_over(prefill: Node, decode: Node, skip: int, **mode: Any) -> None:
    """Decode asks when a part is computed, and prefill computes in chunks that fit nothing."""
    content = prefill.expect("k", TOKENS)
    prefill.computed("k", 7)
    decode.load("k", prefill.port, TOKENS, skip=skip, **mode)
    prefill.computed("k", 19)
    prefill.computed("k", TOKENS)
    prefill.kept("k", TOKENS)

    assert decode.result() is None
    assert decode.holds("k", content, skip)


@pytest.mark.matrix("mode", "pair", "backend")
@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
@pytest.mark.parametrize("pair", PAIRS.values(), ids=PAIRS)
def test_every_token_of_every_head_and_layer_arrives_once(
    pair: tuple[KvLayout, KvLayout], mode: dict[str, Any], backend: str
) -> None:
    with closing(Node(backend, pair[0])) as prefill, closing(Node(backend, pair[1])) as decode:
        hand_over(prefill, decode, skip=1, **mode)

        assert prefill.freed.get(timeout=SECONDS) == "k"
        assert (prefill.used, decode.used) == (0, decode.shape.blocks_for(TOKENS))
        unit = min(pair[0].block_tokens, pair[1].block_tokens)
        skipped = pair[1].block_tokens
        moved = decode.shape.bytes_of(-(-TOKENS // unit) * unit - skipped)
        assert decode.counters.bytes_moved == moved
        assert prefill.counters.bytes_sent == moved


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
@pytest.mark.parametrize("library", ["mooncake", "nixl"])
def test_libraries_of_others_carry_them_too(library: str, mode: dict[str, Any]) -> None:
    require(library)
    with (
        closing(Node(library, PAIRS["all at once"][0], context_bytes=9)) as prefill,
        closing(Node(library, PAIRS["all at once"][1], context_bytes=9)) as decode,
    ):
        hand_over(prefill, decode, skip=1, context=True, **mode)


@pytest.mark.parametrize("mode", [{"by_layer": False}, {}], ids=["after prefill", "by layer"])
def test_a_mover_process_takes_more_ranges_than_fit_into_an_order(
    mode: dict[str, Any], backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of tokens that are cut by heads are many, and none of them touch."""
    monkeypatch.setattr("pdgate.transfer.messenger.mover_wire.MAX_RANGES_BYTES", 5 * 24)
    with (
        closing(Node(backend, replace(NHD, tp=2), mover="process")) as prefill,
        closing(Node(backend, NHD)) as decode,
    ):
        hand_over(prefill, decode, skip=0, **mode)


@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"block_tokens": 6}, "block_tokens 4 here, 6 there"),
        ({"stages": (2,)}, "layers 3 here, 2 there"),
        ({"planes": 1}, "planes 2 here, 1 there"),
        ({"model": "other"}, "model m here, other there"),
        ({"dtype": "float16"}, "dtype int16 here, float16 there"),
    ],
)
def test_what_cannot_fit_is_refused_before_anything_moves(
    change: dict[str, Any], said: str, mode: dict[str, Any]
) -> None:
    with (
        closing(Node("tcp", HND)) as prefill,
        closing(Node("tcp", replace(HND, **change))) as decode,
    ):
        prefill.expect("k", TOKENS)
        decode.load("k", prefill.port, TOKENS, **mode)

        error = decode.result()

        assert error is not None
        assert error.startswith("wrong layout")
        assert said in error
        assert decode.used == 0
        assert not any(any(region.memory) for region in decode.regions)
        # Nobody else is going to ask for it.
        assert prefill.aborted.get(timeout=SECONDS) == "k"
        assert prefill.used == 0
