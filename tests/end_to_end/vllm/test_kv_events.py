"""Stock vLLM says what it has cached, and calls go where their beginning is."""

import operator
import re
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import count

import pytest

from tests.end_to_end.vllm.asking import client, complete, prompt
from tests.end_to_end.vllm.engines import BLOCK, NIXL, Engine, Fleet, Pair, Transfer
from tests.end_to_end.vllm.gateway import Gateway, gateway_over
from tests.end_to_end.vllm.metrics import metric, settles

# What engines publish does not depend on how they hand KV over.
pytestmark = pytest.mark.parametrize("pair", [NIXL], indirect=True, ids=lambda it: it.name)

PROMPT_TOKENS = 10 * BLOCK
TEXT = "A shared beginning, which is long enough to fill several blocks of bytes. " * 20


@dataclass(frozen=True, slots=True)
class Listened:
    transfer: Transfer
    serve: Sequence[str]


@contextmanager
def listening(pair: Pair, fleet: Fleet, name: str, *serve: str) -> Iterator[Gateway]:
    """A gateway that hears these engines' KV events, once it hears them all."""
    transfer = replace(pair.transfer, name=f"{name}-{pair.transfer.name}")
    engines = Listened(transfer, (*serve, "--kv-events", "ask"))
    with gateway_over(engines, "staged", fleet.logs) as gateway:
        gateway.process.wait_until(lambda: shown(gateway, "connected") == 2, "both to be heard")
        yield gateway


def shown(gateway: Gateway, name: str, labels: str = "") -> float:
    with urllib.request.urlopen(f"{gateway.url}/metrics", timeout=30) as answer:
        page = answer.read().decode()
    series = rf"^pdgate_kv_event_{name}\{{[^}}]*{labels}[^}}]*\}} (\S+)"
    return sum(map(float, re.findall(series, page, re.MULTILINE)))


def hits(engine: Engine) -> float:
    """Tokens, by the engine's own count."""
    return metric(engine, "vllm:prefix_cache_hits_total")


def test_calls_go_to_the_engine_that_has_their_tokens(
    alone: Engine, pair: Pair, fleet: Fleet
) -> None:
    """The first of each prompt is sent past the gateway: only events can tell where it is."""
    engines = (alone, pair.decode)
    prompts = [prompt(PROMPT_TOKENS, f"known {n} {pair.transfer.name}") for n in range(6)]
    plain = (word for engine in engines for word in ("--plain", engine.url))
    policy = ("--plain-policy", "prefix_then_load")
    news = count()

    def stored() -> list[float]:
        labels = (f'event="stored",instance="plain-{number}"' for number in range(2))
        return [shown(gateway, "blocks_total", each) for each in labels]

    def hears_news_alone() -> bool:
        """What engines repeat of before comes in bulk, and could be taken for what they say now."""
        before = stored()
        for engine in engines:
            with client(engine.url) as direct:
                complete(direct, prompt(PROMPT_TOKENS, f"news {next(news)}"), max_tokens=1)
        wanted = [each + 10 for each in before]
        gateway.process.wait_until(
            lambda: all(map(operator.ge, stored(), wanted)), "the blocks of both"
        )
        return stored() == wanted

    with listening(pair, fleet, "hearing", *plain, *policy) as gateway:
        gateway.process.wait_until(
            lambda: hears_news_alone() and hears_news_alone(), "what engines repeat to be over"
        )
        before = shown(gateway, "blocks_total", "stored")
        for number, asked in enumerate(prompts):
            with client(engines[number % 2].url) as direct:
                complete(direct, asked, max_tokens=1)
        gateway.process.wait_until(
            lambda: shown(gateway, "blocks_total", "stored") - before >= len(prompts) * 10,
            "all blocks",
        )
        had = [hits(engine) for engine in engines]

        with client(gateway.url) as ours:
            for asked in prompts:
                complete(ours, [*asked, 7, 8, 9], max_tokens=1)

    def found() -> list[float]:
        return [hits(engine) - before for engine, before in zip(engines, had, strict=True)]

    # Engines count an answer after it was sent.
    settles(lambda: found() == [3 * PROMPT_TOKENS, 3 * PROMPT_TOKENS])
    assert found() == [3 * PROMPT_TOKENS, 3 * PROMPT_TOKENS]


def test_the_second_call_goes_where_the_first_went(alone: Engine, pair: Pair, fleet: Fleet) -> None:
    engines = (alone, pair.decode)
    plain = (word for engine in engines for word in ("--plain", engine.url))
    policy = ("--plain-policy", "prefix_then_load")
    text = f"{pair.transfer.name}: {TEXT}"
    with listening(pair, fleet, "second", *plain, *policy) as gateway, client(gateway.url) as ours:
        complete(ours, text + "One end.", max_tokens=1)
        gateway.process.wait_until(
            lambda: shown(gateway, "blocks_total", "stored") > 0, "the first to be stored"
        )
        had = sum(map(hits, engines))

        complete(ours, text + "Another end.", max_tokens=1)

    assert settles(lambda: sum(map(hits, engines)) - had >= 5 * BLOCK)


def test_decode_says_what_it_was_handed(pair: Pair, fleet: Fleet) -> None:
    """So what came by another engine is known as what it has read itself."""
    with listening(pair, fleet, "handed", *pair.serve) as gateway, client(gateway.url) as ours:
        before = shown(gateway, "blocks_total", 'event="stored",instance="decode-0"')
        complete(ours, prompt(PROMPT_TOKENS, f"handed {pair.transfer.name}"), max_tokens=2)

        gateway.process.wait_until(
            lambda: (
                shown(gateway, "blocks_total", 'event="stored",instance="decode-0"') - before >= 9
            ),
            "decode's blocks",
        )
