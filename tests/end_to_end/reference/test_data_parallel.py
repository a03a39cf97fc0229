"""Engines with two data-parallel ranks behind a port, each of which is an instance to the gateway."""

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass

import pytest

from tests.end_to_end.reference.fleet import HTTP, Engine, Fleet, Gateway

pytestmark = pytest.mark.slow

RANKS = ("0", "1")
BLOCK = 16
BLOCKS = 16
PROMPTS = [[first, *range(3, 2 + BLOCK * BLOCKS)] for first in range(1, 9)]
"""No two have a block in common."""


@dataclass(frozen=True)
class RankedSite:
    prefill: Engine
    decode: Engine
    gateway: Gateway


@pytest.fixture(scope="module")
def site() -> Iterator[RankedSite]:
    with ExitStack() as running:
        fleet = Fleet(running, sys.executable)
        flags = ("--dp", "2", "--kv-events-port", "0")
        prefill = fleet.engine("prefill", "vllm-nixl", "tcp", *flags)
        decode = fleet.engine("decode", "vllm-nixl", "tcp", "--dp", "2")
        with fleet.serve(
            f"--instance=role=prefill,url={prefill.url},dp=2",
            f"--instance=role=decode,url={decode.url},dp=2",
            "--prefill-policy=prefix_then_load",
            "--kv-events=ask",
        ) as gateway:
            yield RankedSite(prefill, decode, gateway)


def complete(url: str, prompt: object, tokens: int = 1, rank: str = "") -> str:
    body = {"prompt": prompt, "max_tokens": tokens, "temperature": 0}
    headers = {"X-data-parallel-rank": rank} if rank else {}
    answer = HTTP.post(f"{url}/v1/completions", json=body, headers=headers)
    assert answer.status_code == 200, answer.text
    text: str = answer.json()["choices"][0]["text"]
    return text


def tokens(engine: Engine, source: str) -> list[float]:
    """Of prompts, by rank."""
    name = "vllm:prompt_tokens_by_source_total"
    return [engine.metric(name, source=source, engine=rank) for rank in RANKS]


def test_every_rank_reads_and_takes_over_and_answers_as_one_engine_does(site: RankedSite) -> None:
    """Each rank of prefill has an id and a port of its own, of which decode's rank must hear the right ones."""
    prompts = [f"{number} ships went out to sea, and {number} came back." for number in range(8)]
    alone = [complete(site.decode.url, prompt, 8) for prompt in prompts]

    with ThreadPoolExecutor(len(prompts)) as pool:
        split = list(pool.map(lambda prompt: complete(site.gateway.url, prompt, 8), prompts))

    assert split == alone
    assert all(tokens(site.prefill, "local_compute"))
    assert all(tokens(site.decode, "external_kv_transfer"))


def test_a_prompt_goes_to_the_rank_that_published_that_it_has_it(site: RankedSite) -> None:
    """The gateway did not send it there: only the events of that rank can tell."""
    seen = site.gateway.process
    shown = Engine(site.gateway.url, "", seen)
    before = shown.metric("pdgate_kv_event_cached_blocks")
    for number, prompt in enumerate(PROMPTS):
        complete(site.prefill.url, prompt, rank=RANKS[number % 2])
    seen.wait_until(
        lambda: shown.metric("pdgate_kv_event_cached_blocks") >= before + len(PROMPTS) * BLOCKS,
        "the blocks of all prompts",
    )
    cached = tokens(site.prefill, "local_cache_hit")

    for prompt in PROMPTS:
        complete(site.gateway.url, [*prompt, 1, 2], 2)

    found = [
        now - then
        for now, then in zip(tokens(site.prefill, "local_cache_hit"), cached, strict=True)
    ]
    assert found == [len(PROMPTS) / 2 * BLOCKS * BLOCK] * 2


@pytest.mark.parametrize("rank", ["2", "9" * 5000], ids=["next", "long"])
def test_a_rank_that_there_is_not_is_refused_and_no_rank_is_any(
    rank: str, site: RankedSite
) -> None:
    answer = HTTP.post(
        f"{site.decode.url}/v1/completions",
        json={"prompt": "Hi", "max_tokens": 1},
        headers={"X-data-parallel-rank": rank},
    )

    assert (answer.status_code, answer.json()["error"]["code"]) == (400, 400)
    assert "out of range [0, 2)" in answer.text
    complete(site.decode.url, "Hi")
