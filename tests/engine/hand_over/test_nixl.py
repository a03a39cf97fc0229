"""What vllm-nixl has of its own."""

from contextlib import closing
from typing import Any

import pytest

from tests.support.engine_pair import D_BLOCKS, PROMPT, Pair, Start, prefill
from tests.support.fake_core import SECONDS


@pytest.mark.parametrize("named", [[[7, 8]], [[10_000, 10_001]], [[0]]])
def test_nixl_reads_the_requests_blocks_whatever_the_params_name(
    start: Start, named: list[list[int]]
) -> None:
    """Foreign, stale or impossible ids give the right answer, and never another call's."""
    pair = start("vllm-nixl")
    answer = prefill(pair)
    pair.p.prefill(pair.to_prefill(2), (7, 8), seed=2)

    pair.d.load(pair.to_decode({**answer, "remote_block_ids": named}), D_BLOCKS)

    assert pair.d.result() is None
    assert pair.d.holds(D_BLOCKS, seed=1)
    assert pair.p.freed.get(timeout=SECONDS) == "p1"


def test_nixl_answers_all_that_decode_needs(start: Start) -> None:
    pair = start("vllm-nixl")

    answer = prefill(pair)

    host, port = pair.p.connector.kv_address
    assert answer.pop("remote_engine_id")
    assert answer == {
        "do_remote_prefill": True,
        "do_remote_decode": False,
        "remote_block_ids": [[9, 2]],
        "remote_request_id": "p1",
        "remote_host": host,
        "remote_port": port,
        "tp_size": 1,
        "remote_num_tokens": len(PROMPT),
        "remote_prefill_cached_tokens": 0,
        "remote_blocks_expiry_time": None,
        "transfer_mode": "pull",
    }


def test_nixl_asks_no_other_life_of_the_engine(start: Start) -> None:
    pair = start("vllm-nixl")
    answer = prefill(pair)

    pair.d.load(pair.to_decode({**answer, "remote_engine_id": "an earlier one"}), D_BLOCKS)

    error = pair.d.result()
    assert error is not None
    assert error.startswith("wrong engine")
    pair.d.close()
    assert pair.p.freed.empty()


@pytest.mark.parametrize(
    "bad",
    [
        {"remote_block_ids": None},
        {"remote_block_ids": []},
        {"remote_block_ids": [[]]},
        {"remote_block_ids": [["1"]]},
        {"remote_block_ids": [[-1]]},
        {"remote_block_ids": [[True]]},
        {"remote_engine_id": None},
        {"remote_request_id": 5},
        {"remote_host": ""},
        {"remote_port": 0},
        {"remote_port": "5600"},
        {"remote_num_tokens": -1},
        {"do_remote_decode": True},
        {"do_remote_prefill": "yes"},
    ],
)
def test_bad_nixl_params_fail_one_request(bad: dict[str, Any]) -> None:
    with closing(Pair("vllm-nixl", "tcp")) as pair:
        answer = prefill(pair)

        with pytest.raises(ValueError, match="remote"):
            pair.d.connector.plan(pair.to_decode({**answer, **bad}))
