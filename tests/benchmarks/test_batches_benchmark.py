"""The benchmark of batches serves one over each state, and says what it cost."""

from pathlib import Path

import pytest

# It is not installed, and so is imported where a test needs it: the wheel's tests have none.
pytestmark = [pytest.mark.source, pytest.mark.slow]


def test_a_batch_over_each_state_has_its_cost(tmp_path: Path) -> None:
    from benchmarks.batches import measure

    found = measure(lines=50, tokens=10, concurrency=4, cache=tmp_path)

    assert found.keys() == {"SQLite", "Redis"}
    for one in found.values():
        assert one.answers_bytes > 50 * 100
        assert min(one.seconds, one.gateway_cpu_seconds) > 0
    assert found["SQLite"].redis_bytes == 0 < found["Redis"].redis_bytes
