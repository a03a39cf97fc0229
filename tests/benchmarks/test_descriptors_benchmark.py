"""The benchmark of descriptors measures pushes as engines send them."""

import pytest

# It is not installed, and so is imported where a test needs it: the wheel's tests have none.
pytestmark = pytest.mark.source


@pytest.mark.parametrize(("backend", "tp"), [("shm", 1), ("tcp", 4)])
def test_descriptors_are_a_small_part_of_a_push_and_one_for_each_block_would_not_be(
    backend: str, tp: int
) -> None:
    from benchmarks.descriptors import BLOCKS, measure

    found = measure(backend, tp, rounds=1)

    assert found.ids > 2 * BLOCKS
    assert 50 * tp < found.message - found.ids < 400 * tp
    assert found.a_block > 30 * found.message
    assert min(found.grants, found.says, found.hears) > 0
