"""A model with latent attention (MLA): its cache has one plane and no heads, so any rank of P serves."""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from tests.end_to_end.vllm import make_latent_model, make_model
from tests.end_to_end.vllm.engines import Fleet
from tests.end_to_end.vllm.many_workers import LENGTH, Engines, crosses

KINDS = {"one": [], "tp2": ["--tensor-parallel-size", "2"]}
BLOCK = 16
"""Whatever is asked for, vLLM's CPU kernel takes this."""

BLOCK_BYTES = make_model.LAYERS * BLOCK * make_latent_model.ROW * 4


@pytest.fixture(scope="module")
def engines(fleet: Fleet, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engines]:
    model = Path(tmp_path_factory.mktemp("latent"))
    make_latent_model.make(model)
    with ExitStack() as stack:
        yield Engines(replace(fleet, model=model), stack, KINDS, "latent")


@pytest.mark.parametrize("pair", [("tp2", "one"), ("one", "tp2")], ids="-".join)
def test_the_answer_is_that_of_one_engine(pair: tuple[str, str], engines: Engines) -> None:
    shares = 2 if pair[1] == "tp2" else 1
    blocks = -(-(LENGTH - 1) // BLOCK)

    crosses(engines, pair, "delegated", shares * blocks * BLOCK_BYTES)
