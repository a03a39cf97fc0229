"""The benchmark of one prefill and three decodes: what the simulator says of it. Its fleet of processes is run by hand."""

import pytest

# It is not installed, and so is imported where a test needs it: the wheel's tests have none.
pytestmark = pytest.mark.source


def test_the_crossing_costs_a_call_alone_and_streams_are_faster_under_load() -> None:
    from benchmarks.perplexity import APART, TOGETHER, simulated

    found = simulated(calls=100, per_second=4.0)

    assert found[APART].alone > found[TOGETHER].alone
    assert found[APART].gap[0] < found[TOGETHER].gap[0]
    assert found[APART].gap[1] < found[TOGETHER].gap[1]
