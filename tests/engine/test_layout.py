"""How the reference engine splits its KV heads over shards."""

import pytest

from pdgate.engine.layout import Layout


def layout(kv_heads: int, tp: int) -> Layout:
    return Layout(layers=3, blocks=5, kv_heads=kv_heads, block_tokens=4, head_dim=8, tp=tp)


@pytest.mark.parametrize(
    ("kv_heads", "tp", "held"),
    [
        (4, 1, [[0, 1, 2, 3]]),
        (4, 2, [[0, 1], [2, 3]]),
        (2, 4, [[0], [0], [1], [1]]),
        (1, 3, [[0], [0], [0]]),
    ],
)
def test_shards_split_the_heads_or_share_them(
    kv_heads: int, tp: int, held: list[list[int]]
) -> None:
    assert [list(layout(kv_heads, tp).shard_heads(shard)) for shard in range(tp)] == held


def test_two_shards_hold_what_one_did() -> None:
    assert 2 * layout(4, 2).total_bytes == layout(4, 1).total_bytes
    assert layout(4, 2).block_bytes == layout(4, 1).block_bytes


@pytest.mark.parametrize(("kv_heads", "tp"), [(4, 3), (4, 6), (3, 2), (4, 0)])
def test_heads_that_cannot_be_split_evenly_are_refused(kv_heads: int, tp: int) -> None:
    with pytest.raises(
        ValueError, match=f"{kv_heads} KV heads cannot be split evenly over tp {tp}"
    ):
        layout(kv_heads, tp)
