"""Families of an engine's /metrics that are read, and what they stand for.

Several engines have several names for one thing; where one page has two of them, they are added up.

Sources: vLLM 0.32.0, v1/metrics/loggers.py and .../kv_connector/v1/nixl/stats.py, and 0.33's .../v1/mooncake/stats.py; SGLang 0.5,
srt/metrics/collector.py, where those that wait for KV are in queues of their own; ours, engine/vllm/metrics.py and engine/metrics.py.
"""

from collections.abc import Mapping
from typing import Final

RUNNING, WAITING, TRANSFERRING = "running", "waiting", "transferring"
KV_USED, KV_TOKENS, QUEUED_TOKENS, QUEUE_UP = "kv_used", "kv_tokens", "queued_tokens", "queue_up"
QUEUE_WAITING: Final = "queue_waiting"

BY_LABEL: Final[Mapping[bytes, tuple[bytes, Mapping[bytes, str]]]] = {
    b"vllm:prompt_tokens_by_source_total": (
        b"source",
        {
            b"local_compute": "computed",
            b"local_cache_hit": "cached",
            b"external_kv_transfer": "transferred",
        },
    ),
    b"vllm:num_requests_kv_fetch_by_stage": (b"stage", {b"in_progress": TRANSFERRING}),
}
"""Family -> its label, and which field each value of that stands for."""

CACHE_CONFIG: Final = b"vllm:cache_config_info"
"""Its value is always 1; what it says stands in its labels."""

COUNTERS: Final[Mapping[bytes, str]] = {
    b"pdgate_engine_prompt_tokens_chosen_total": "chosen",
    b"vllm:time_to_first_token_seconds_count": "first_tokens",
    b"pdgate_engine_first_tokens_total": "first_tokens",
    b"vllm:nixl_xfer_time_seconds_count": "loads",
    b"vllm:pdgate_transfers_total": "loads",
    b"pdgate_engine_kv_transfers_total": "loads",
    # Includes failed notifications, which have a counter of their own as well.
    b"vllm:nixl_num_failed_transfers_total": "loads_failed",
    b"vllm:pdgate_failed_total": "loads_failed",
    b"pdgate_engine_kv_transfers_failed_total": "loads_failed",
    b"vllm:mooncake_xfer_time_seconds_count": "loads",
    # Of the two sides: prefill's writes, and what decode did not get.
    b"vllm:mooncake_num_failed_transfers_total": "loads_failed",
    b"vllm:mooncake_num_failed_recvs_total": "loads_failed",
    b"vllm:mooncake_num_kv_expired_reqs_total": "expired",
    b"sglang:num_transfer_failed_reqs_total": "loads_failed",
    b"vllm:nixl_num_kv_expired_reqs_total": "expired",
    b"vllm:pdgate_expired_total": "expired",
    b"pdgate_engine_kv_leases_expired_total": "expired",
    b"vllm:nixl_num_notifications_after_expiry_total": "read_late",
    b"vllm:inter_token_latency_seconds_count": "steps",
    b"vllm:inter_token_latency_seconds_sum": "step_seconds",
    b"pdgate_engine_steps_total": "steps",
    b"pdgate_engine_stepping_seconds_total": "step_seconds",
}
"""Family -> field of Counters."""

GAUGES: Final[Mapping[bytes, str]] = {
    b"vllm:num_requests_running": RUNNING,
    b"vllm:num_requests_waiting": WAITING,
    b"vllm:kv_cache_usage_perc": KV_USED,
    b"sglang:num_running_reqs": RUNNING,
    b"sglang:num_queue_reqs": WAITING,
    b"sglang:num_decode_prealloc_queue_reqs": WAITING,
    b"sglang:num_decode_transfer_queue_reqs": WAITING,
    b"sglang:token_usage": KV_USED,
    b"sglang:max_total_num_tokens": KV_TOKENS,
    b"pdgate_engine_requests_loading": TRANSFERRING,
    b"pdgate_engine_queued_prompt_tokens": QUEUED_TOKENS,
    b"pdgate_prefill_queue_up": QUEUE_UP,
    b"pdgate_prefill_queue_waiting": QUEUE_WAITING,
}
"""Family -> field of Page."""
