"""What PdgateConnector cannot hand over ends the start of stock vLLM, with one sentence that says what is in the way.

Sleep mode is refused before the connector is asked: on a CPU vLLM 0.32.0 has none (config/model.py, ModelConfig).
"""

from contextlib import ExitStack
from dataclasses import replace

import pytest

from tests.end_to_end.vllm.engines import PDGATE_TCP, START_SECONDS, Fleet
from tests.end_to_end.vllm.other_models import windowed
from tests.support.ports import free_port

FULL, SLIDING = "full_attention", "sliding_attention"
HYBRID = "this model has FullAttentionSpec, SlidingWindowSpec"
MODELS = [((SLIDING, SLIDING), "this model has SlidingWindowSpec"), ((FULL, SLIDING), HYBRID)]


@pytest.mark.parametrize(("layers", "why"), MODELS, ids=["sliding window", "hybrid groups"])
def test_layers_that_forget_tokens_end_the_start_by_name(
    layers: tuple[str, str], why: str, fleet: Fleet
) -> None:
    name = f"windowed-{'-'.join(layers)}"
    windows = replace(fleet, model=windowed(fleet.logs / name, layers))
    port, kv_port = free_port(), free_port()

    with ExitStack() as stack:
        process = windows.start(stack, name, port, PDGATE_TCP.flags("kv_both", port, kv_port))
        assert process.wait_for_end(START_SECONDS) != 0
        said = process.log.read_text()

    assert f"FullAttentionSpec or MLAAttentionSpec, and {why}" in said
