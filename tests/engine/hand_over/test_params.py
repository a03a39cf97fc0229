"""Params come from clients: bad ones fail one request, none fail nothing."""

from contextlib import closing

import pytest

from pdgate.engine.connector import Arrival
from tests.support.engine_pair import DIALECTS, KEEPS_ALL, arrival
from tests.support.fake_core import FakeCore


def trt(type_: str, id: int, where: str = "tcp://h:1", firsts: object = None) -> dict[str, object]:
    ids = {"disagg_request_id": id, "ctx_request_id": id, "schedule_style": 0}
    return {"request_type": type_, **ids, "ctx_info_endpoint": where, "first_gen_tokens": firsts}


@pytest.mark.parametrize(
    ("protocol", "request_"),
    [
        ("vllm-mooncake", arrival(params={"do_remote_prefill": True})),
        ("vllm-mooncake", arrival(wire_id="", params={"do_remote_prefill": True})),
        (
            "vllm-mooncake",
            arrival(
                params={
                    "do_remote_prefill": True,
                    "remote_engine_id": "e",
                    "remote_bootstrap_addr": "127.0.0.1:8998",
                }
            ),
        ),
        (
            "vllm-mooncake",
            arrival(
                params={
                    "do_remote_prefill": True,
                    "bootstrap_server_host": "h",
                    "bootstrap_server_port": 8.5,
                }
            ),
        ),
        ("vllm-kvt", arrival(params={"remote_host": "h"})),
        ("vllm-kvt", arrival(params={"do_remote_prefill": True})),
        ("vllm-kvt", arrival(wire_id="", params={"remote_host": "h", "remote_port": 1})),
        ("sglang", arrival(bootstrap_room=-1, bootstrap_host="h")),
        ("sglang", arrival(bootstrap_room=1)),
        ("sglang", arrival(bootstrap_room=[1, 2], bootstrap_host=["h", "h"])),
        ("tpu", arrival(params={"uuid": 1, "remote_host": "h", "remote_port": 1})),
        ("tpu", arrival(params={"uuid": -1, "remote_block_ids": [1], "remote_host": "h"})),
        ("offload-p2p", arrival(params={"remote_decoder": {"kv_request_id": "w"}})),
        ("mori-io", arrival(params={"do_remote_decode": True, "transfer_id": "t"})),
        ("mori-io", arrival(params={"do_remote_prefill": True, "remote_host": "h"})),
        ("mori-io", arrival(params={"do_remote_prefill": True, "do_remote_decode": True})),
        ("lmdeploy", arrival(migration_request="here")),
        ("lmdeploy", arrival(migration_request={"remote_block_ids": [1]})),
        ("lmdeploy", arrival(with_cache=True, preserve_cache=True, session_id="s")),
        ("lmdeploy", arrival(with_cache=True, preserve_cache=True, session_id=1)),
        ("tensorrt-llm", arrival(disaggregated_params="here")),
        ("tensorrt-llm", arrival(disaggregated_params={"schedule_style": 0})),
        ("tensorrt-llm", arrival(disaggregated_params=trt("context_only", 7))),
        ("tensorrt-llm", arrival(disaggregated_params=trt("context_only", 1 << 41))),
        (
            "tensorrt-llm",
            arrival(disaggregated_params=trt("generation_only", 1 << 41, where="http://h:1")),
        ),
        (
            "tensorrt-llm",
            arrival(disaggregated_params=trt("generation_only", 1 << 41, firsts=[1, 2])),
        ),
        ("offload-p2p", arrival(params={"remote_prefiller": {"kv_request_id": "w"}})),
        ("offload-p2p", arrival(params={"remote_prefiller": "here"})),
        ("offload-p2p", arrival(params={"remote_prefiller": {}, "remote_decoder": {}})),
        ("vllm-nixl", arrival(params={"do_remote_decode": True})),
        ("vllm-kvt", arrival(params={"do_remote_decode": True})),
        ("vllm-mooncake", arrival(params={"do_remote_decode": True})),
    ],
)
def test_bad_params_and_crossed_roles_fail_one_request(protocol: str, request_: Arrival) -> None:
    with (
        closing(FakeCore("tcp", protocol, "decode")) as d,
        pytest.raises(ValueError, match=r"must|need|role"),
    ):
        d.connector.plan(request_)


@pytest.mark.parametrize("protocol", sorted({d.split()[0] for d in DIALECTS}))
@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_a_request_without_a_hand_over_is_just_computed(protocol: str, role: str) -> None:
    with closing(FakeCore("tcp", protocol, role)) as core:
        kept = role == "prefill" and protocol in KEEPS_ALL
        assert (core.connector.plan(arrival()) is not None) == kept
        assert (core.connector.plan(arrival("r2", wire_id="", params={})) is not None) == kept
