"""What a bootstrap server says of prefill's engines."""

import pytest

from pdgate.protocols.dialects import mooncake


def test_engine_ids_come_in_the_order_of_ranks() -> None:
    answer = {
        "1": {"engine_id": "b", "worker_addr": {"0": {"0": "tcp://10.0.0.1:1"}}},
        "0": {"engine_id": "a", "worker_addr": {}},
    }

    assert mooncake.engine_ids(answer) == ((0, "a"), (1, "b"))


@pytest.mark.parametrize("answer", [None, [], "x", {"a": {"engine_id": "x"}}, {"0": {}}, {"0": 1}])
def test_nonsense_is_said_to_be_so(answer: object) -> None:
    with pytest.raises(ValueError, match="not a bootstrap server's answer"):
        mooncake.engine_ids(answer)
