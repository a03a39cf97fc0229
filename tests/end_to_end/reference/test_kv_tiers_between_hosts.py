"""KV tiers between hosts, over real processes: an engine with a folder of its own asks another's for blocks, or computes."""

import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from signal import SIGCONT, SIGKILL, SIGSTOP
from typing import Any
from uuid import uuid4

import pytest

from tests.end_to_end.reference.fleet import HTTP, Engine, Fleet, Pair, Route
from tests.end_to_end.reference.test_kv_tiers import BLOCK_TOKENS, cached, hits, written
from tests.end_to_end.reference.test_same_tokens import PROMPTS, said
from tests.support.waiting import wait_until

PROMPT = PROMPTS["many blocks"]
LONG = [[first, *range(3, 260), 5, 6] for first in range(60, 66)]
"""Prompts of token ids, of 16 full blocks each and a rest."""


@dataclass(frozen=True)
class Site:
    """Engines of two hosts: `there` serves what it has in a folder, and those that `here` makes have others."""

    fleet: Fleet
    folder: Path
    secret: Path
    there: Engine
    port: int

    def here(self, role: str = "plain", protocol: str = "plain", *more: str) -> Engine:
        own = f"host={self.folder / uuid4().hex}:64"
        flags = ("--kv-secret-file", str(self.secret), *more)
        peer = f"peer=127.0.0.1:{self.port}:64"
        return self.fleet.engine(role, protocol, "tcp", "--kv-tier", own, "--kv-tier", peer, *flags)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    secret = tmp_path / "secret"
    secret.write_text(f"{'a' * 32}\n")
    secret.chmod(0o600)
    with ExitStack() as running:
        own = Fleet(running, sys.executable)
        flags = ("--kv-secret-file", str(secret), "--kv-tier-port", "0")
        tier = ("--kv-tier", f"disk={tmp_path / 'there'}:64")
        there = own.engine("plain", "plain", "shm", *tier, *flags)
        port = there.process.wait_for_line(r"KV tiers are served at 127\.0\.0\.1:(\d+)")[1]
        yield Site(own, tmp_path, secret, there, int(port))


def complete(engine: Engine, prompt: list[int], **more: Any) -> Any:
    body = {"prompt": prompt, "max_tokens": 8, "temperature": 0, "return_token_ids": True, **more}
    answer = HTTP.post(f"{engine.url}/v1/completions", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]["token_ids"]


def lost(engine: Engine) -> float:
    return engine.metric("pdgate_engine_kv_tier_lost_total", medium="peer")


def computed_there(site: Site, prompt: list[int], **more: Any) -> Any:
    """The answer, once its KV can be had."""
    before = written(site.there, "disk")
    found = complete(site.there, prompt, **more)
    blocks = len(prompt) // BLOCK_TOKENS
    wait_until(lambda: written(site.there, "disk") - before >= blocks, "the prompt's blocks")
    return found


def test_prefill_and_decode_find_what_another_host_has_computed(fleet: Fleet, site: Site) -> None:
    expected = said(fleet.single().url, PROMPT, False, True)
    usable = (expected[2][0] - 1) // BLOCK_TOKENS
    assert said(site.there.url, PROMPT, False, True) == expected
    wait_until(lambda: written(site.there, "disk") >= usable, "the prompt's blocks on disk")

    pair = Pair("vllm-nixl", site.here("prefill", "vllm-nixl"), site.here("decode", "vllm-nixl"))
    with site.fleet.gateway(pair, Route("vllm-nixl", "batch")) as gateway:
        assert said(gateway.url, PROMPT, False, True) == expected

    for engine in (pair.prefill, pair.decode):
        assert hits(engine, "peer") == usable
        assert cached(engine) == usable * BLOCK_TOKENS
        # And they are in its own folder from now on.
        wait_until(lambda engine=engine: written(engine, "host") >= usable, "blocks of its own")  # type: ignore[misc]
    assert site.there.metric("pdgate_engine_kv_tier_served_total", medium="disk") == 2 * usable


def test_salts_and_seeds_keep_apart_between_hosts(site: Site) -> None:
    expected = computed_there(site, LONG[0], cache_salt="mine")
    here = site.here()

    assert complete(here, LONG[0], cache_salt="yours") == expected
    assert complete(here, LONG[0]) == expected
    other = site.here("plain", "plain", "--prefix-hash-seed", "another")
    assert complete(other, LONG[0], cache_salt="mine") == expected
    assert hits(here, "peer") == hits(other, "peer") == 0
    assert (cached(here), cached(other), lost(here)) == (0, 0, 0)

    assert complete(here, LONG[0], cache_salt="mine") == expected
    assert hits(here, "peer") == 16


def test_other_weights_keep_apart_between_hosts(fleet: Fleet, site: Site) -> None:
    """By what they are: both engines call the model by the same name."""
    before = computed_there(site, LONG[0])
    here = site.here("plain", "plain", "--control")
    alone = site.fleet.engine("plain", "plain", "shm", "--control")
    for engine in (here, alone):
        body = {"model_path": "pdgate-tiny?seed=5"}
        answer = HTTP.post(f"{engine.url}/update_weights_from_disk", json=body)
        assert answer.status_code == 200, answer.text

    found = complete(here, LONG[0])

    assert found == complete(alone, LONG[0]) != before
    assert hits(here, "peer") == 0


def test_what_was_changed_on_the_other_host_is_computed(site: Site) -> None:
    expected = computed_there(site, LONG[0])
    for file in (site.folder / "there").iterdir():
        data = file.read_bytes()
        file.write_bytes(data[:-8] + bytes(8))
    here = site.here()

    assert complete(here, LONG[0]) == expected

    assert hits(here, "peer") == 0
    assert site.there.metric("pdgate_engine_kv_tier_broken_total", medium="disk") == 1


def test_a_frozen_or_killed_peer_costs_no_answer(site: Site) -> None:
    expected = [computed_there(site, prompt) for prompt in LONG]
    here, later = site.here(), site.here("plain")
    assert complete(here, LONG[0]) == expected[0]
    assert hits(here, "peer") == 16

    # Its connection is there, and says nothing; nor does its port, to the one that has none yet.
    site.there.process.signal(SIGSTOP)
    try:
        for engine in (here, later):
            began = time.monotonic()
            assert complete(engine, LONG[1]) == expected[1]
            assert time.monotonic() - began < 30
            assert lost(engine) == 1
            # Left alone for now, so that this one does not wait.
            assert complete(engine, LONG[2]) == expected[2]
            assert lost(engine) == 1
    finally:
        site.there.process.signal(SIGCONT)
    site.there.process.signal(SIGKILL)

    for prompt, tokens in zip(LONG[3:], expected[3:], strict=True):
        assert complete(here, prompt) == tokens
    assert hits(here, "peer") == 16


def test_a_peer_that_is_killed_in_the_middle_of_a_fetch_costs_no_answer(site: Site) -> None:
    """Frozen first, so that the fetch has begun and cannot end."""
    expected = computed_there(site, LONG[0])
    here = site.here()
    site.there.process.signal(SIGSTOP)
    body = {
        "prompt": LONG[0],
        "max_tokens": 8,
        "temperature": 0,
        "return_token_ids": True,
        "stream": True,
    }
    with HTTP.stream("POST", f"{here.url}/v1/completions", json=body) as answer:
        site.there.process.signal(SIGKILL)
        text = "".join(answer.iter_text())

    assert "[DONE]" in text
    assert complete(here, LONG[0]) == expected
    assert lost(here) == 1
    assert hits(here, "peer") == 0


def test_an_engine_of_another_fleet_gets_nothing(site: Site) -> None:
    expected = computed_there(site, LONG[0])
    other = site.folder / "another"
    other.write_text(f"{'b' * 32}\n")
    other.chmod(0o600)
    stranger = site.fleet.engine(
        "plain",
        "plain",
        "shm",
        *("--kv-tier", f"peer=127.0.0.1:{site.port}:64", "--kv-secret-file", str(other)),
    )

    assert complete(stranger, LONG[0]) == expected

    assert (hits(stranger, "peer"), lost(stranger)) == (0, 1)
    assert "another KV secret" in stranger.process.tail()
    assert site.there.metric("pdgate_engine_kv_tier_served_total", medium="disk") == 0
