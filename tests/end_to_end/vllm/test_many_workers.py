"""Engines of several workers: KV crosses between any two of them, and the answer is that of one.

    one     a single worker, also what all are compared with
    tp 2    two tensor-parallel workers, a KV head each
    pp 2    two pipeline stages, a layer each

Each is prefill and decode at once, so that three engines make every pair. None has a prefix cache: what
it does not compute itself has come from its peer.
"""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from typing import Any, Final

import pytest

from tests.end_to_end.vllm.asking import GREEDY, Said, client, complete, prompt
from tests.end_to_end.vllm.engines import BLOCK, Engine, Fleet, pdgate_over, ready
from tests.end_to_end.vllm.metrics import Counted, Prompts, held_share, settles
from tests.support.ports import LOOPBACK, free_port

KINDS: Final[Mapping[str, list[str]]] = {
    "one": [],
    "tp2": ["--tensor-parallel-size", "2"],
    "pp2": ["--pipeline-parallel-size", "2"],
}
PAIRS: Final = [
    ("tp2", "one"),
    ("one", "tp2"),
    ("tp2", "tp2"),
    ("pp2", "one"),
    ("one", "pp2"),
    ("pp2", "tp2"),
]
PATIENT: Final = pdgate_over("tcp", lease_seconds=60.0)
"""Ten processes that spin on two cores take their time."""

LENGTH: Final = 4 * BLOCK + 3
BLOCK_BYTES: Final = 2 * 2 * 2 * BLOCK * 32 * 4
"""Of the model that make_model.py makes: layers, K and V, KV heads, tokens, head size, float32."""


class Engines:
    def __init__(self, fleet: Fleet, stack: ExitStack) -> None:
        starting = {}
        self.kv_ports = {}
        for kind, flags in KINDS.items():
            port, kv_port = free_port(), free_port()
            said = PATIENT.flags("kv_both", port, kv_port)
            more = [*said, *flags, "--no-enable-prefix-caching"]
            starting[kind] = fleet.start(stack, f"workers-{kind}", port, more), port
            self.kv_ports[kind] = kv_port
        self.by_kind: dict[str, Engine] = {
            kind: ready(process, port) for kind, (process, port) in starting.items()
        }
        for engine in self.by_kind.values():
            with client(engine.url) as direct:
                complete(direct, prompt(BLOCK, "warm"), max_tokens=4)

    def at(self, kind: str) -> dict[str, Any]:
        return {"remote_host": LOOPBACK, "remote_port": self.kv_ports[kind]}


@pytest.fixture(scope="module")
def engines(fleet: Fleet) -> Iterator[Engines]:
    with ExitStack() as stack:
        yield Engines(fleet, stack)


def ask(engine: Engine, tokens: list[int], params: Mapping[str, Any], call_id: str = "") -> Said:
    extra = {**GREEDY["extra_body"], "kv_transfer_params": params}
    headers = {"X-Request-Id": call_id} if call_id else {}
    with client(engine.url) as direct:
        return complete(direct, tokens, extra_body=extra, extra_headers=headers)


def alone(engines: Engines, tokens: list[int]) -> list[int]:
    with client(engines.by_kind["one"].url) as direct:
        return complete(direct, tokens).token_ids


def nothing_is_held(engines: Engines) -> None:
    for kind, engine in engines.by_kind.items():
        assert settles(lambda engine=engine: held_share(engine) == 0), kind  # type: ignore[misc]


@pytest.mark.parametrize("way", ["delegated", "read"])
@pytest.mark.parametrize("pair", PAIRS, ids="-".join)
def test_the_answer_is_that_of_one_engine(
    pair: tuple[str, str], way: str, engines: Engines
) -> None:
    """Delegated: layer by layer, as D asks P. Read: as P answers where its blocks are."""
    prefill, decode = (engines.by_kind[kind] for kind in pair)
    tokens = prompt(LENGTH, f"workers {pair} {way}")
    expected = alone(engines, tokens)
    before, counted = Prompts.of(decode), Counted.by(decode)

    params: Mapping[str, Any] = engines.at(pair[0])
    if way == "read":
        asked = {"do_remote_decode": True, "do_remote_prefill": False}
        with client(prefill.url) as direct:
            extra = {"kv_transfer_params": asked}
            raw = direct.completions.create(
                model=GREEDY["model"], prompt=tokens, max_tokens=1, temperature=0, extra_body=extra
            )
        params = (raw.model_extra or {})["kv_transfer_params"]
    said = ask(decode, tokens, params)

    assert said.token_ids == expected
    assert settles(lambda: (Prompts.of(decode) - before).computed == 1)
    assert (Prompts.of(decode) - before).transferred == LENGTH - 1
    moved = Counted.by(decode) - counted
    assert (moved.bytes, moved.transfers, moved.failed) == (5 * BLOCK_BYTES, 1, 0)
    nothing_is_held(engines)


@pytest.mark.parametrize("pair", [("tp2", "one"), ("one", "tp2")], ids="-".join)
def test_a_load_that_fails_fails_its_call_alone(pair: tuple[str, str], engines: Engines) -> None:
    """And with the first worker's failure the others' end: nothing waits for a lease."""
    decode = engines.by_kind[pair[1]]
    tokens = prompt(LENGTH, f"workers {pair} fails")
    at = {"remote_host": LOOPBACK, "remote_port": free_port()}

    said = ask(decode, tokens, at)

    assert said.finish_reason == "abort"
    nothing_is_held(engines)
    assert ask(decode, tokens, engines.at(pair[0])).token_ids == alone(engines, tokens)
