from typing import Any

import pytest

from pdgate.engine.settings import EngineSettings


@pytest.mark.parametrize(
    "wrong",
    [
        {"blocks": 0},
        {"tp": 0},
        {"max_seqs": 9, "max_step_tokens": 8},
        {"role": "cook"},
        {"role": "prefill"},
        {"protocol": "vllm-nixl"},
        {"fail_rate": 1.5},
        {"on_failed_load": "ignore"},
        {"speculate": -1},
        {"speculate": 17},
        {"model": "pdgate-huge"},
    ],
)
def test_what_cannot_work_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        EngineSettings(**wrong)


def test_no_sequence_is_longer_than_all_blocks() -> None:
    assert EngineSettings(blocks=4, block_tokens=16, max_model_tokens=1000).most_tokens == 64
