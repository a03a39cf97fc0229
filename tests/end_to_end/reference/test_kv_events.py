"""A gateway that hears what engines have cached, also of what it did not send them."""

import secrets
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import pytest

from tests.end_to_end.reference.fleet import HTTP, Engine, Fleet, Gateway

pytestmark = pytest.mark.slow

BLOCK = 16
PROMPTS = [[first, *range(3, 259)] for first in range(1, 9)]
"""16 blocks each, of which no two prompts have one in common."""

TEXT = "The quick brown fox jumps over the lazy dog, again and again. " * 40


@dataclass(frozen=True)
class Site:
    """Two engines, and a gateway that was started when they had `PROMPTS` cached."""

    engines: tuple[Engine, Engine]
    gateway: Gateway


@pytest.fixture(scope="module", params=["on loopback", "with a secret"])
def site(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Site]:
    file = tmp_path_factory.mktemp("fleet") / "kv-secret"
    file.write_text(secrets.token_hex(32))
    with_secret = request.param == "with a secret"
    ours = ["--kv-secret-file", str(file)] if with_secret else []
    theirs = ["--kv-events-secret-file", str(file)] if with_secret else []
    with ExitStack() as running:
        fleet = Fleet(running, sys.executable)
        one, other = (
            fleet.engine("plain", "plain", "shm", "--kv-events-port", "0", *ours) for _ in range(2)
        )
        for number, prompt in enumerate(PROMPTS):
            complete((one, other)[number % 2].url, prompt)
        instances = [f"--instance=role=plain,url={engine.url}" for engine in (one, other)]
        flags = ("--plain-policy", "prefix_then_load", "--kv-events", "ask", *theirs)
        with fleet.serve(*flags, *instances) as gateway:
            yield Site((one, other), gateway)


def complete(url: str, prompt: object) -> None:
    answer = HTTP.post(f"{url}/v1/completions", json={"prompt": prompt, "max_tokens": 1})
    assert answer.status_code == 200, answer.text


def hits(engine: Engine) -> float:
    """Tokens of prompts that it need not compute."""
    return engine.metric("vllm:prompt_tokens_by_source_total", source="local_cache_hit")


def shown(gateway: Gateway, name: str, **labels: str) -> float:
    return Engine(gateway.url, "", gateway.process).metric(name, **labels)


def until(gateway: Gateway, name: str, least: float, **labels: str) -> None:
    gateway.process.wait_until(
        lambda: shown(gateway, name, **labels) >= least, f"{name} {labels} of {least}"
    )


def test_calls_go_to_who_has_their_tokens_already(site: Site) -> None:
    """The gateway has sent those engines nothing: only their events can tell."""
    until(site.gateway, "pdgate_kv_event_cached_blocks", len(PROMPTS) * 16)

    for prompt in PROMPTS:
        complete(site.gateway.url, [*prompt, 1, 2])

    assert sum(map(hits, site.engines)) == len(PROMPTS) * 16 * BLOCK


def test_a_text_is_found_by_the_tokens_that_an_engine_tells(site: Site) -> None:
    (known, other), gateway = site.engines, site.gateway
    blocks = shown(gateway, "pdgate_kv_event_cached_blocks")
    complete(known.url, TEXT)
    until(gateway, "pdgate_kv_event_cached_blocks", blocks + 30)
    # Wherever this goes, its beginning is found at the engine that was asked directly.
    complete(gateway.url, TEXT + "A first end.")
    until(gateway, "pdgate_tokenized_prompts_total", 1, outcome="told")
    before, elsewhere = hits(known), hits(other)

    complete(gateway.url, TEXT + "Another end.")

    assert hits(known) + hits(other) - before - elsewhere >= 30 * BLOCK
    assert shown(gateway, "pdgate_kv_event_connected") == 2
