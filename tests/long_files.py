"""Files of tests that take longest, and how many seconds: the order in which parallel processes
take them (tools/parallel_tests.sh).

Seconds on two cores with much else to do; only the order hangs on them. A file that is begun late
and ends last, which `make test` shows among its slowest, belongs here.
"""

from collections.abc import Mapping
from typing import Final

SECONDS: Final[Mapping[str, int]] = {
    "tests/lab/chaos/test_gateway_under_faults.py": 520,
    "tests/lab/chaos/test_killed_engines.py": 430,
    "tests/lab/conformance/test_protocols.py": 400,
    "tests/adversary/test_memory.py": 330,
    "tests/lab/chaos/test_resumed_streams.py": 310,
    "tests/docs/test_commands_in_docs.py": 270,
    "tests/end_to_end/clients/test_clients.py": 200,
    "tests/adversary/test_background.py": 200,
    "tests/adversary/test_logs.py": 200,
    "tests/adversary/test_answers.py": 200,
    "tests/end_to_end/reference/test_churn.py": 160,
    "tests/lab/chaos/test_frozen_engines.py": 160,
    "tests/deploy/test_dashboards.py": 150,
    "tests/adversary/test_workers.py": 150,
    "tests/end_to_end/reference/test_disaggregation.py": 140,
    "tests/end_to_end/reference/test_directory.py": 140,
    "tests/cluster/etcd/test_login.py": 140,
    "tests/lab/demo/test_demo_for_real.py": 130,
    "tests/adversary/test_time.py": 125,
    "tests/end_to_end/reference/test_doctor.py": 120,
    "tests/end_to_end/reference/test_failed_loads.py": 120,
    "tests/docs/test_add_a_backend.py": 110,
    "tests/benchmarks/test_transfer_benchmark.py": 110,
    "tests/deploy/test_rules.py": 80,
    "tests/end_to_end/reference/test_directory_on_redis.py": 80,
    "tests/gateway/test_bad_requests.py": 70,
    "tests/gateway/test_exceptions.py": 70,
    "tests/gateway/sync/workers/test_ring.py": 65,
    "tests/gateway/test_openapi.py": 65,
    "tests/benchmarks/test_disaggregation_benchmark.py": 60,
    "tests/lab/chaos/test_slow_engines.py": 50,
    "tests/cluster/etcd/test_outages.py": 50,
    "tests/benchmarks/test_guard_runs.py": 50,
    "tests/adversary/test_models_of_tenants.py": 50,
    "tests/gateway/test_workers.py": 50,
}
