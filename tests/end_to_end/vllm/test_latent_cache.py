"""A model with latent attention (MLA): its cache has one plane and no heads, so any rank of P serves."""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from pdgate.engine.cache.memory import KvMemory
from pdgate.engine.layout import Layout
from pdgate.engine.model.llama import Span
from pdgate.engine.model.load import load
from tests.end_to_end.vllm import make_latent_model, make_model
from tests.end_to_end.vllm.asking import prompt
from tests.end_to_end.vllm.engines import Fleet
from tests.end_to_end.vllm.many_workers import LENGTH, Engines, crosses

KINDS = {"one": [], "tp2": ["--tensor-parallel-size", "2"]}
BLOCK = 16
"""Whatever is asked for, vLLM's CPU kernel takes this."""

TOKENS = 16

BLOCK_BYTES = make_model.LAYERS * BLOCK * make_latent_model.ROW * 4


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("latent")
    make_latent_model.make(folder)
    return folder


@pytest.fixture(scope="module")
def engines(fleet: Fleet, model: Path) -> Iterator[Engines]:
    with ExitStack() as stack:
        yield Engines(replace(fleet, model=model), stack, KINDS, "latent")


def test_the_reference_engine_computes_the_same(engines: Engines, model: Path) -> None:
    asked = prompt(LENGTH, "latent, alone")
    loaded = load(str(model), 1024)
    layout = Layout(loaded.config.layers, 64, 1, 16, loaded.config.head_dim, planes=1)
    memory = KvMemory(layout, [memoryview(bytearray(layout.total_bytes))])
    tokens = list(asked)
    for start, end in pairwise([0, *range(LENGTH, LENGTH + TOKENS)]):
        [logits] = loaded.decoder.forward([Span(tokens[start:end], start, range(64))], memory)
        tokens.append(int(logits[-1].argmax()))

    assert tokens[LENGTH:] == engines.alone(asked)[:TOKENS]


@pytest.mark.parametrize("pair", [("tp2", "one"), ("one", "tp2")], ids="-".join)
def test_the_answer_is_that_of_one_engine(pair: tuple[str, str], engines: Engines) -> None:
    shares = 2 if pair[1] == "tp2" else 1
    blocks = -(-(LENGTH - 1) // BLOCK)

    crosses(engines, pair, "delegated", shares * blocks * BLOCK_BYTES)
