"""Engines whose KV is split over different numbers of shards hand it over all the same.

For lmdeploy that is true of our engines only, which are joined here by hand: LMDeploy's D would die of it, and a gateway
joins no such pair (tests/forwarders/test_joins.py).
"""

from contextlib import closing
from dataclasses import replace

import pytest

from tests.support.engine_pair import D_BLOCKS, DIALECTS, P_BLOCKS, Pair, prefill
from tests.support.fake_core import LAYOUT, SECONDS, FakeCore

WIDE = replace(LAYOUT, kv_heads=4)
SPLITS = [(2, 1), (1, 2), (4, 2), (2, 4), (8, 2), (2, 8)]
"""tp of prefill and decode; with 8 each of the four heads is there twice."""


@pytest.mark.parametrize("split", SPLITS, ids=lambda split: f"{split[0]}to{split[1]}")
@pytest.mark.parametrize("dialect", DIALECTS)
def test_every_shard_of_decode_gets_its_heads(
    dialect: str, split: tuple[int, int], backend: str
) -> None:
    p_layout, d_layout = (replace(WIDE, tp=tp) for tp in split)
    with (
        closing(Pair(dialect, backend, layout=p_layout)) as pair,
        closing(FakeCore(backend, pair.protocol, "decode", layout=d_layout, peer=pair.d.peer)) as d,
    ):
        pair.join(d)
        d.load(pair.to_decode(prefill(pair)), D_BLOCKS)

        assert d.result() is None
        assert d.holds(D_BLOCKS, seed=1)
        untouched = set(range(WIDE.blocks)) - set(D_BLOCKS)
        assert not any(any(d.page(layer, b)) for b in untouched for layer in range(WIDE.layers))
        assert pair.p.freed.get(timeout=SECONDS)
        assert d.connector.counters.bytes_moved == len(P_BLOCKS) * d_layout.block_bytes
