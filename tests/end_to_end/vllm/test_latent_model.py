"""MLA on stock vLLM: the latent crosses between two engines, and decode goes on as the single engine does.

What vLLM 0.32.0's CPU kernels say here hangs on how a prompt is computed: one engine, without any hand-over, says other
tokens beside three other prompts than alone (24 of 24), at tensor parallel 2 than at 1, and by prefill than by decode. So
only what is computed alike is compared: prefill has all tokens but the last, as the single engine had, which has decoded
that last one itself. Other ways and splits are compared by bytes (tests/engine/vllm/test_many_workers.py).
"""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace

import pytest

from tests.end_to_end.vllm.engines import Fleet
from tests.end_to_end.vllm.many_workers import LENGTH, Engines, begun, crosses
from tests.end_to_end.vllm.other_models import LATENT_BYTES, latent

BLOCK = 16
"""Of MLA on a CPU, whatever --block-size says (vLLM 0.32.0, platforms/cpu.py)."""
BLOCKS = -(-(LENGTH - 1) // BLOCK)
KINDS = ("one", "other")
PAIRS = [("other", "one"), ("one", "other")]


@pytest.fixture(scope="module")
def engines(fleet: Fleet) -> Iterator[Engines]:
    of_latents = replace(fleet, model=latent(fleet.logs / "latent"))
    flags = ["--block-size", str(BLOCK)]
    with ExitStack() as stack:
        yield Engines(of_latents, stack, dict.fromkeys(KINDS, flags), "latent")


@pytest.mark.parametrize("pair", PAIRS, ids="-".join)
def test_the_answer_goes_on_as_that_of_one_engine(pair: tuple[str, str], engines: Engines) -> None:
    crosses(engines, pair, "delegated", BLOCKS * BLOCK * LATENT_BYTES, begun)
