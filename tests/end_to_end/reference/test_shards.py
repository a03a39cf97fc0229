"""Prefill and decode that split their KV differently answer like one engine that does not.

Each shard has a memory of its own, and each shard's queries see that memory only: a head
that was moved to the wrong shard, or not at all, changes the answer.

Here with processes and HTTP, and shards that each have a mover process: one row for each
split and backend. Every protocol over every backend with every split is what
tests/engine/hand_over/test_same_tokens.py goes through, in one process.
"""

import sys
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.end_to_end.reference.fleet import Engine, Fleet, Gateway, Pair, Route, client
from tests.support.kv_backends import require

pytestmark = pytest.mark.slow

CASES = [
    (Route("vllm-nixl", "staged"), "tcp", (2, 1)),
    (Route("vllm-kvt", "batch"), "shm", (4, 2)),
    (Route("vllm-mooncake", "batch", "d"), "mooncake", (1, 2)),
    (Route("sglang", "batch"), "nixl", (2, 1)),
]
"""Each split, each backend. The built-in model has two KV heads, so four shards have each twice."""
PROMPTS = ["Hello", "the quick brown fox jumps over the lazy dog. " * 7]
BY_SOURCE = "vllm:prompt_tokens_by_source_total"


@pytest.fixture(
    scope="module",
    params=CASES,
    ids=lambda case: f"{case[0]}-{case[1]}-{case[2][0]}to{case[2][1]}",
)
def crossing(request: pytest.FixtureRequest) -> Iterator[tuple[Pair, Gateway]]:
    """Engines of its own, gone when the case is over: they are too many to keep."""
    route, transfer, split = request.param
    require(transfer)
    with ExitStack() as running:
        fleet = Fleet(running, sys.executable)
        prefill, decode = (
            fleet.engine(role, route.protocol, transfer, "--tp", str(tp))
            for role, tp in zip(("prefill", "decode"), split, strict=True)
        )
        pair = Pair(route.protocol, prefill, decode)
        with fleet.gateway(pair, route) as gateway:
            yield pair, gateway


def said(url: str, prompt: str) -> str:
    answer = client(url).completions.create(
        model="pdgate-tiny", prompt=prompt, max_tokens=12, temperature=0
    )
    return answer.choices[0].text


def test_the_answer_is_the_single_engines(crossing: tuple[Pair, Gateway], fleet: Fleet) -> None:
    pair, gateway = crossing
    single: Engine = fleet.single()

    for prompt in PROMPTS:
        assert said(gateway.url, prompt) == said(single.url, prompt)

    assert pair.decode.metric(BY_SOURCE, source="external_kv_transfer") > 0
    # The last token of each prompt.
    assert pair.decode.metric(BY_SOURCE, source="local_compute") <= len(PROMPTS)
