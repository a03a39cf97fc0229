"""Batches as engines of all years write them, and what nobody should have written."""

from contextlib import suppress
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from pdgate.gateway.kv_events.events import Cleared, MalformedBatch, Removed, Stored, read
from tests.gateway.kv_events.engine import CLEARED, payload


def test_maps_and_rows_say_the_same() -> None:
    """Older vLLM writes rows, which end where the writer knew no more."""
    maps = read(
        payload(
            {
                "type": "BlockStored",
                "block_hashes": [2**64 - 1],
                "parent_block_hash": None,
                "token_ids": [1, 2],
                "block_size": 2,
                "lora_id": None,
                "some_new_field": {"x": 1},
            },
            {"type": "BlockRemoved", "block_hashes": [b"\x01" * 32]},
            {"type": "AllBlocksCleared"},
        )
    )
    rows = read(
        payload(
            ["BlockStored", [2**64 - 1], None, [1, 2], 2, None],
            ["BlockRemoved", [b"\x01" * 32]],
            ["AllBlocksCleared"],
        )
    )

    assert [msgspec.structs.asdict(event) for event in maps.events] == [
        msgspec.structs.asdict(event) for event in rows.events
    ]
    for batch in (maps, rows):
        stored, removed, cleared = batch.events
        assert isinstance(stored, Stored)
        assert isinstance(removed, Removed)
        assert isinstance(cleared, Cleared)
        assert batch.unknown == 0


def test_a_batch_may_be_a_map() -> None:
    """As vLLM wrote it for a while."""
    data = msgspec.msgpack.encode({"ts": 1.5, "events": [CLEARED], "data_parallel_rank": 0})

    batch = read(data)

    assert batch.at == 1.5
    assert [type(event) for event in batch.events] == [Cleared]


@given(st.binary(max_size=200))
def test_no_bytes_break_the_reader(data: bytes) -> None:
    with suppress(MalformedBatch):
        read(data)


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["type", "block_hashes", "token_ids", "block_size", "x"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=8,
)


@settings(max_examples=50)
@given(st.lists(ANYTHING, max_size=4))
def test_events_that_make_no_sense_do_not_hide_those_that_do(nonsense: list[Any]) -> None:
    batch = read(payload(CLEARED, *nonsense, CLEARED))

    assert len(batch.events) + batch.unknown == len(nonsense) + 2
    assert len(batch.events) >= 2
