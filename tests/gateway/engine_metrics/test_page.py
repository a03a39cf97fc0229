"""Pages of real engines are read, and nothing on a page makes the reader stumble."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdgate.gateway.engine_metrics.counters import EngineCounters
from pdgate.gateway.engine_metrics.page import SLICE_BYTES, MetricsPage, parse, parse_in_turns

VLLM = b"""\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:num_requests_waiting{engine="0",model_name="m"} 2.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="m",reason="capacity"} 7.0
vllm:num_requests_kv_fetch_by_stage{engine="0",model_name="m",stage="waiting_to_start"} 5.0
vllm:num_requests_kv_fetch_by_stage{engine="0",model_name="m",stage="in_progress"} 1.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
vllm:prompt_tokens_by_source_total{engine="0",model_name="m",source="local_compute"} 5.0
vllm:prompt_tokens_by_source_total{engine="0",model_name="m",source="local_cache_hit"} 16.0
vllm:prompt_tokens_by_source_total{engine="0",model_name="m",source="external_kv_transfer"} 1.2e+03
vllm:prompt_tokens_by_source_created{engine="0",model_name="m",source="local_compute"} 1.7e+09
vllm:time_to_first_token_seconds_bucket{engine="0",le="0.001",model_name="m"} 0.0
vllm:time_to_first_token_seconds_count{engine="0",model_name="m"} 9.0
vllm:time_to_first_token_seconds_sum{engine="0",model_name="m"} 0.5
vllm:inter_token_latency_seconds_count{engine="0",model_name="m"} 40.0
vllm:inter_token_latency_seconds_sum{engine="0",model_name="m"} 0.8
vllm:nixl_xfer_time_seconds_count{engine="0",model_name="m"} 8.0
vllm:nixl_num_failed_transfers_total{engine="0",model_name="m"} 1.0
vllm:nixl_num_kv_expired_reqs_total{engine="0",model_name="m"} 4.0
vllm:nixl_num_notifications_after_expiry_total{engine="0",model_name="m"} 0.0
vllm:cache_config_info{block_size="16",engine="0",num_gpu_blocks="512"} 1.0
"""


def test_a_page_of_vllm_is_read() -> None:
    assert parse(VLLM) == MetricsPage(
        EngineCounters(
            computed=5,
            cached=16,
            transferred=1200,
            first_tokens=9,
            loads=8,
            loads_failed=1,
            expired=4,
            read_late=0,
            steps=40,
            step_seconds=0.8,
        ),
        running=3,
        waiting=2,
        transferring=1,
        kv_used=0.25,
        kv_tokens=8192,
        block_tokens=16,
    )


def test_a_page_of_vllm_with_mooncake_says_what_failed() -> None:
    """From 0.33 on; of both sides, as one engine may be either."""
    page = parse(
        b"""vllm:mooncake_xfer_time_seconds_count{engine="0"} 8.0
vllm:mooncake_bytes_transferred_sum{engine="0"} 4096.0
vllm:mooncake_num_failed_transfers_total{engine="0"} 1.0
vllm:mooncake_num_failed_recvs_total{engine="0"} 2.0
vllm:mooncake_num_kv_expired_reqs_total{engine="0"} 4.0
"""
    )

    assert page.counters == EngineCounters(loads=8, loads_failed=3, expired=4)


def test_a_page_of_sglang_says_its_load() -> None:
    page = parse(
        b'sglang:num_running_reqs{model_name="m"} 8\n'
        b'sglang:num_queue_reqs{model_name="m"} 4\n'
        b'sglang:num_decode_transfer_queue_reqs{model_name="m"} 2\n'
        b'sglang:max_total_num_tokens{model_name="m"} 471258\n'
        b'sglang:token_usage{model_name="m"} 0.5'
    )

    assert (page.running, page.waiting, page.kv_used, page.kv_tokens) == (8, 6, 0.5, 471258)
    assert page.counters == EngineCounters()


def test_ranks_are_added_up_and_shares_averaged() -> None:
    page = parse(VLLM + VLLM.replace(b'engine="0"', b'engine="1"').replace(b" 0.25", b" 0.75"))

    assert (page.running, page.counters.transferred, page.kv_used) == (6, 2400, 0.5)
    assert page.kv_tokens == 2 * 8192


def test_an_instance_that_is_one_rank_reads_its_own_lines() -> None:
    other = VLLM.replace(b'engine="0"', b'engine="1"').replace(b" 3.0", b" 11.0")

    assert parse(VLLM + other, rank=1).running == 11
    assert parse(VLLM + other, rank=0) == parse(VLLM)


def test_a_rank_of_sglang_reads_its_own_lines() -> None:
    lines = [
        b'sglang:num_running_reqs{engine_type="decode",tp_rank="0",dp_rank="%d"} %d\n'
        % (rank, load)
        for rank, load in ((0, 3), (1, 5), (10, 7))
    ]
    page = b"".join(lines)

    assert [parse(page, rank=rank).running for rank in (0, 1, 10)] == [3, 5, 7]
    assert parse(page).running == 15


def test_labels_may_hold_anything() -> None:
    name = rb"{a} source=\"local_compute\" 9"
    page = parse(VLLM.replace(b'model_name="m"', b'model_name="' + name + b'"'))

    assert page == parse(VLLM)


@pytest.mark.parametrize(
    "line",
    [
        b"vllm:num_requests_running",
        b"vllm:num_requests_running{",
        b'vllm:num_requests_running{engine="0"}',
        b'vllm:num_requests_running{engine="0"} many',
        b"vllm:num_requests_running NaN",
        b"vllm:num_requests_running +Inf",
        b"vllm:num_requests_running -3",
        b"vllm:num_requests_waiting 1e300",
        b"vllm:kv_cache_usage_perc -0.5",
        b'vllm:cache_config_info{num_gpu_blocks="-5"} 1.0',
        b"pdgate_engine_queued_prompt_tokens 1e13",
        b"pdgate_engine_steps_total -1",
        b"vllm:prompt_tokens_by_source_total 3",
        b'vllm:prompt_tokens_by_source_total{source="a_new_one"} 3',
        b'vllm:cache_config_info{block_size="None"} 1.0',
        b"\xff\xfe",
    ],
)
def test_a_line_that_cannot_be_read_is_passed_over(line: bytes) -> None:
    assert parse(line) == MetricsPage()


def test_labels_and_timestamps_are_optional() -> None:
    assert parse(b"vllm:num_requests_running 3 1700000000000").running == 3
    assert parse(b'vllm:num_requests_running{engine="0"} 3 1700000000000').running == 3


@given(st.binary(max_size=200), st.binary(max_size=20))
def test_no_page_is_too_odd(some: bytes, more: bytes) -> None:
    parse(some)
    parse(b"vllm:prompt_tokens_by_source_total{" + more + b"} 1\nvllm:num_requests_running" + some)


async def test_a_long_page_is_read_in_turns_as_at_once() -> None:
    filler = b'vllm:e2e_bucket{le="1"} 1\n' * (SLICE_BYTES // 20)
    page = VLLM + filler + VLLM + filler + VLLM.rstrip(b"\n")

    assert await parse_in_turns(page, rank=0) == parse(page, rank=0)
    assert parse(page).running == 9
