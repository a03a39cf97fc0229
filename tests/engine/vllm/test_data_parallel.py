"""Where a data-parallel rank is asked, and what its own API server calls it."""

from types import SimpleNamespace

import pytest

from pdgate.engine.vllm.settings import DataRank, rank_of


@pytest.mark.parametrize(
    ("index", "local", "balanced_by", "expected"),
    [
        (0, None, "", DataRank(0, None)),
        (3, 3, "", DataRank(3, 3)),
        # The second host of two, whose ranks are behind the first one's API server: other addresses.
        (9, 1, "", DataRank(9, 9)),
        # The same with an API server on each host.
        (9, 1, "data_parallel_hybrid_lb", DataRank(1, 1)),
        # An API server for each rank.
        (1, 0, "data_parallel_external_lb", DataRank(1, None)),
    ],
)
def test_a_rank_is_asked_at_a_port_of_its_own_and_asks_itself(
    index: int, local: int | None, balanced_by: str, expected: DataRank
) -> None:
    parallel = SimpleNamespace(
        data_parallel_index=index,
        data_parallel_rank_local=local,
        data_parallel_external_lb=False,
        data_parallel_hybrid_lb=False,
    )
    if balanced_by:
        setattr(parallel, balanced_by, True)

    assert rank_of(parallel) == expected
