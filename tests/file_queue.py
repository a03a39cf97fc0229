"""The queue from which parallel processes take files of tests (tools/parallel_tests.sh): the longest first, and
files that share what takes long to start as one. The run ends where one of the processes dies.
"""

import re
from collections.abc import Mapping
from typing import Any, Final

import pytest

TOGETHER: Final[Mapping[str, str]] = {
    "tests/lab/chaos/test_frozen_engines.py": "chaos",
    "tests/lab/chaos/test_gateway_under_faults.py": "chaos",
    "tests/lab/chaos/test_killed_engines.py": "chaos",
    "tests/lab/chaos/test_resumed_streams.py": "chaos",
    "tests/end_to_end/reference/test_disaggregation.py": "reference",
    "tests/end_to_end/reference/test_foreign_kv.py": "reference",
    "tests/end_to_end/reference/test_kubernetes.py": "reference",
    "tests/end_to_end/reference/test_many_answers.py": "reference",
    "tests/end_to_end/reference/test_other_apis.py": "reference",
    "tests/end_to_end/reference/test_replay.py": "reference",
    "tests/end_to_end/reference/test_same_tokens.py": "reference",
    "tests/end_to_end/reference/test_verification.py": "reference",
}
"""Path -> what is taken as one: eighteen processes of lab/chaos/topology.py, a dozen of the reference engines' fleet."""

PAIR_OF_VLLM: Final = re.compile(
    r"^tests/end_to_end/vllm/.*?(?P<pair>pdgate-(?:tcp|shm|mooncake)-(?:layerwise|pull|push))"
    r"|^tests/end_to_end/vllm/.*?(?P<stock>vllm-(?:nixl|mooncake))"
)
"""What is asked of one pair of engines (tests/end_to_end/vllm/engines.py), from whatever file."""

SECONDS: Final[Mapping[str, int]] = {
    "vllm-nixl": 250,
    "tests/lab/conformance/test_protocols.py": 190,
    "pdgate-tcp-layerwise": 185,
    "chaos": 180,
    "reference": 171,
    "tests/end_to_end/vllm/test_our_ranks.py": 170,
    "tests/end_to_end/vllm/test_failed_loads.py": 150,
    "vllm-mooncake": 130,
    "pdgate-shm-layerwise": 125,
    "tests/docs/test_site.py": 120,
    "tests/end_to_end/vllm/test_lent_prefixes.py": 110,
    "tests/adversary/test_memory.py": 97,
    "tests/transfer/test_conformance.py": 95,
    "tests/lab/chaos/test_slow_engines.py": 91,
    "tests/end_to_end/vllm/test_frozen.py": 80,
    "tests/adversary/test_workers.py": 77,
    "tests/gateway/liveness/test_silent_engines.py": 77,
    "tests/engine/hand_over/test_same_tokens.py": 76,
    "tests/lab/demo/test_demo_for_real.py": 73,
    "tests/end_to_end/reference/test_failed_loads.py": 67,
    "tests/end_to_end/reference/test_decode_first.py": 63,
    "tests/adversary/test_background.py": 63,
    "tests/end_to_end/reference/test_directory.py": 59,
    "tests/lab/chaos/test_black_hole.py": 56,
    "tests/end_to_end/reference/test_churn.py": 56,
    "tests/end_to_end/reference/test_neuron.py": 51,
    "tests/end_to_end/reference/test_role_changes.py": 47,
    "tests/docs/test_commands_in_docs.py": 40,
    "tests/end_to_end/reference/test_early_first_token.py": 40,
    "tests/gateway/test_bad_requests.py": 39,
    "tests/end_to_end/reference/test_kv_tiers.py": 37,
    "tests/end_to_end/reference/test_kv_tiers_between_hosts.py": 40,
    "tests/end_to_end/reference/test_encoders.py": 33,
    "tests/end_to_end/clients/test_clients.py": 37,
    "tests/gateway/test_watchdog.py": 33,
    "tests/gateway/test_probe.py": 31,
    "tests/transfer/test_registered_memory.py": 30,
    "tests/end_to_end/reference/test_shards.py": 30,
    "tests/benchmarks/test_disaggregation_benchmark.py": 29,
    "tests/transfer/messenger/test_killed_peers.py": 28,
    "tests/cluster/etcd/test_outages.py": 28,
    "tests/transfer/mooncake/test_mooncake.py": 27,
    "tests/gateway/test_exceptions.py": 26,
    "tests/end_to_end/reference/test_directory_on_redis.py": 25,
    "tests/end_to_end/reference/test_kv_events.py": 25,
    "tests/deploy/test_dashboards.py": 24,
    "tests/deploy/test_rules.py": 24,
    "tests/end_to_end/reference/test_read_back.py": 24,
    "tests/end_to_end/reference/test_giving_way.py": 22,
    "tests/end_to_end/reference/test_control.py": 22,
    "tests/adversary/test_time.py": 24,
    "tests/gateway/apis/test_generating.py": 23,
    "tests/end_to_end/reference/test_doctor.py": 22,
    "tests/gateway/test_engine_errors.py": 22,
    "tests/adversary/test_logs.py": 21,
    "tests/gateway/apis/test_passing.py": 20,
    "tests/engine/test_lent_prefixes.py": 20,
    "tests/end_to_end/openai_sdk/test_openai_python.py": 20,
    "tests/transfer/messenger/test_killed_decode.py": 20,
    "tests/cluster/redis_store/test_outages.py": 19,
    "tests/end_to_end/reference/test_adaptive_roles.py": 19,
    "tests/transfer/messenger/test_killed_prefill.py": 18,
    "tests/adversary/test_answers.py": 17,
    "tests/gateway/console/test_in_browser.py": 16,
    "tests/gateway/test_openapi.py": 16,
    "tests/engine/test_server.py": 16,
    "tests/scheduling/disaggregation/test_auto_in_simulation.py": 15,
    "tests/engine/neuron/test_faults.py": 15,
}
"""What is taken as one -> seconds in one of four processes on two cores with other work; only the order hangs on
them. A file that is begun late and ends last, which `make test` shows among its slowest, belongs here."""


def taken_as_one(nodeid: str) -> str:
    if found := PAIR_OF_VLLM.match(nodeid):
        return found["pair"] or found["stock"]
    path = nodeid.partition("::")[0]
    return TOGETHER.get(path, path)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """End the run, with the results so far and the test that was under way.

    pytest-xdist 3.8 starts another process, gives it nothing once the others have ended, and waits for ever.
    """
    if error:
        session: Any = node.config.pluginmanager.get_plugin("dsession")
        session.shouldstop = f"the test process {node.gateway.id} died"
