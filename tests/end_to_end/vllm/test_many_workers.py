"""Engines of several workers: KV crosses between any two of them, and the answer is that of one.

    one     a single worker, also what all are compared with
    tp2     two tensor-parallel workers, a KV head each
    pp2     two pipeline stages, a layer each

Three engines make every pair, as each is prefill and decode at once.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from pdgate.engine.vllm.metrics import PREFIX
from tests.end_to_end.vllm.asking import prompt
from tests.end_to_end.vllm.engines import BLOCK, Engine, Fleet
from tests.end_to_end.vllm.many_workers import LENGTH, Engines, ask, crosses
from tests.end_to_end.vllm.metrics import held_share, metric, settles
from tests.end_to_end.vllm.parts import frozen, frozen_behind
from tests.support.ports import LOOPBACK, free_port
from tests.support.waiting import PATIENCE_SECONDS, wait_until

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


def test_a_load_of_a_peer_that_falls_silent_fails_while_it_is_silent(engines: Engines) -> None:
    """Both workers of decode wait for the prompt, which prefill has sent to its own API. The blocks, into which it may
    still write, are free when it has said that it does not."""
    prefill, decode = engines.by_kind["one"], engines.by_kind["tp2"]
    tokens = prompt(LENGTH, "workers silent")

    with ThreadPoolExecutor() as pool, ExitStack() as struck:
        struck.enter_context(frozen(prefill, "API server"))
        asked = pool.submit(ask, decode, tokens, engines.at("one"))
        wait_until(lambda: _unanswered(prefill), "prefill to be asked")
        struck.enter_context(frozen_behind(prefill))

        assert asked.result(PATIENCE_SECONDS).finish_reason == "abort"
        assert settles(lambda: metric(decode, f"{PREFIX}stranded_blocks") > 0)
        assert held_share(decode) > 0

    engines.hold_nothing()
    assert ask(decode, tokens, engines.at("one")).token_ids == engines.alone(tokens)


def _unanswered(engine: Engine) -> int:
    """Connections that its API has not accepted. Source: proc(5), /proc/net/tcp; 0A is LISTEN."""
    port = f":{urlsplit(engine.url).port:04X}"
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return sum(
        int(queues.partition(":")[2], 16)
        for _, local, _, state, queues, *_ in lines
        if state == "0A" and local.endswith(port)
    )
