"""Engines of several workers: KV crosses between any two of them, and the answer is that of one.

    one     a single worker, also what all are compared with
    tp2     two tensor-parallel workers, a KV head each
    pp2     two pipeline stages, a layer each

Three engines make every pair, as each is prefill and decode at once.
"""

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.end_to_end.vllm.asking import prompt
from tests.end_to_end.vllm.engines import BLOCK, Fleet
from tests.end_to_end.vllm.many_workers import LENGTH, Engines, ask, crosses
from tests.support.ports import LOOPBACK, free_port

KINDS = {
    "one": [],
    "tp2": ["--tensor-parallel-size", "2"],
    "pp2": ["--pipeline-parallel-size", "2"],
}
CASES = [
    ("tp2", "one", "delegated"),
    ("tp2", "one", "read"),
    ("one", "tp2", "delegated"),
    ("one", "tp2", "read"),
    ("pp2", "one", "delegated"),
    ("pp2", "one", "read"),
    ("one", "pp2", "delegated"),
    ("pp2", "tp2", "delegated"),
]
BLOCK_BYTES = 2 * 2 * 2 * BLOCK * 32 * 4
"""Of the model that make_model.py makes: layers, K and V, KV heads, tokens, head size, float32."""


@pytest.fixture(scope="module")
def engines(fleet: Fleet) -> Iterator[Engines]:
    with ExitStack() as stack:
        yield Engines(fleet, stack, KINDS, "workers")


@pytest.mark.parametrize(("prefill", "decode", "way"), CASES, ids=map("-".join, CASES))
def test_the_answer_is_that_of_one_engine(
    prefill: str, decode: str, way: str, engines: Engines
) -> None:
    crosses(engines, (prefill, decode), way, 5 * BLOCK_BYTES)


@pytest.mark.parametrize("pair", [("tp2", "one"), ("one", "tp2")], ids="-".join)
def test_a_load_that_fails_fails_its_call_alone(pair: tuple[str, str], engines: Engines) -> None:
    """Whether one worker of decode or two cannot reach prefill; the engine goes on."""
    decode = engines.by_kind[pair[1]]
    tokens = prompt(LENGTH, f"workers {pair} fails")
    nowhere = {"remote_host": LOOPBACK, "remote_port": free_port()}

    assert ask(decode, tokens, nowhere).finish_reason == "abort"

    engines.hold_nothing()
    assert ask(decode, tokens, engines.at(pair[0])).token_ids == engines.alone(tokens)
