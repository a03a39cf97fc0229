"""Weights of a prefill and a decode engine change while calls come, and no call ever meets two of them.

Real engines, a gateway of two workers, token ids: an answer is that of a single engine with the weights of before or
of after, token for token, and after the update that of after.
"""

import random
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Any

import httpx2
import pytest

from tests.end_to_end.reference.fleet import HTTP, Engine, Fleet, Gateway, Pair, Route
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow

TOKEN = "correct-horse-battery-staple"
KNOWN = {"authorization": f"Bearer {TOKEN}"}
PROTOCOL = "vllm-nixl"
GENERATE = "/inference/v1/generate"
CALLERS = 4


@dataclass(frozen=True)
class Site:
    """
    Attributes:
        single: An engine by itself, for what an answer has to be.
    """

    gateway: Gateway
    pair: Pair
    single: Engine

    def tell(self, target: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        answer = HTTP.post(f"{self.gateway.url}{target}", json=body or {}, headers=KNOWN)
        assert answer.status_code == 200, answer.text
        said: dict[str, Any] = answer.json()
        return said


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    file: Path = tmp_path_factory.mktemp("control") / "token"
    file.write_text(TOKEN)
    with ExitStack() as running:
        fleet = Fleet(running, sys.executable)
        engines = [
            fleet.engine(role, protocol, "shm", "--control")
            for role, protocol in (("prefill", PROTOCOL), ("decode", PROTOCOL), ("plain", "plain"))
        ]
        pair = Pair(PROTOCOL, engines[0], engines[1])
        flags = ("--control", "--admin-token-file", str(file), "--workers", "2")
        more = ("--prefill-policy", "prefix_then_load", "--health-interval", "0.2")
        route = Route(PROTOCOL, "staged")
        # Records are kept by the worker that served the call, which could be another one.
        with fleet.gateway(pair, route, *flags, *more) as gateway:
            yield Site(gateway, pair, engines[2])


def prompt_of(number: int) -> list[int]:
    """Some that begin alike, so that old KV would be met again."""
    draw = random.Random(number % 3)
    return [draw.randrange(32, 127) for _ in range(150)] + [40 + number % 50]


def tokens(url: str, prompt: list[int], http: httpx2.Client = HTTP) -> list[int]:
    sampling = {"max_tokens": 12, "temperature": 0, "ignore_eos": True}
    body = {"token_ids": prompt, "sampling_params": sampling}
    answer = http.post(f"{url}{GENERATE}", json=body)
    assert answer.status_code == 200, answer.text
    found: list[int] = answer.json()["choices"][0]["token_ids"]
    return found


def expected(site: Site, seed: int) -> list[list[int]]:
    """What a single engine with the weights of that seed says to all prompts."""
    body = {"model_path": f"pdgate-tiny?seed={seed}"}
    assert HTTP.post(f"{site.single.url}/update_weights_from_disk", json=body).status_code == 200
    return [tokens(site.single.url, prompt_of(number)) for number in range(6)]


@pytest.mark.parametrize(
    ("target", "seeds"),
    [
        ("/update_weights_from_disk", (20, 31)),
        ("/update_weights?mode=wait", (31, 32)),
    ],
)
def test_calls_under_load_meet_the_weights_of_before_or_of_after_and_never_both(
    site: Site, target: str, seeds: tuple[int, int]
) -> None:
    before, after = (expected(site, seed) for seed in seeds)
    assert all(one != other for one, other in zip(before, after, strict=True))
    end, met = Event(), [0, 0]

    def call(caller: int) -> None:
        number = caller
        with httpx2.Client(timeout=60, trust_env=False) as http:
            while not end.is_set():
                found = tokens(site.gateway.url, prompt_of(number % 6), http)
                which = 0 if found == before[number % 6] else 1
                assert found == (before, after)[which][number % 6], "a mixture"
                # Once the new weights were met no later call of this caller meets the old ones.
                met[which] += 1
                number += 1

    path = {"model_path": f"pdgate-tiny?seed={seeds[1]}"}
    body = path if "from_disk" in target else {"update_info": path}
    with ThreadPoolExecutor(CALLERS) as callers:
        calling = [callers.submit(call, number) for number in range(CALLERS)]
        try:
            wait_until(lambda: met[0] > 2 * CALLERS, "calls that met the weights of before")
            said = site.tell(target, body)
            assert [one["ok"] for one in said["engines"]] == [True, True], said
            seen = met[1]
            wait_until(lambda: met[1] > seen + 2 * CALLERS, "calls that met the new ones")
        finally:
            end.set()
        for each in calling:
            each.result()
    assert [tokens(site.gateway.url, prompt_of(number)) for number in range(6)] == after


def test_calls_wait_while_engines_are_paused_asleep_and_awake_again(site: Site) -> None:
    after = expected(site, 33)
    site.tell("/pause?mode=wait")
    said = site.tell("/update_weights", {"update_info": {"seed": 33}})
    assert said["held"] == ["paused"]
    with ThreadPoolExecutor(1) as callers:
        waiting = callers.submit(tokens, site.gateway.url, prompt_of(0))
        site.tell("/release_memory_occupation")
        assert not waiting.done()
        assert site.tell("/resume_memory_occupation")["held"] == ["paused"]
        assert not waiting.done()
        assert site.tell("/resume")["held"] == []
        # Of all workers: none had an engine that it took to sleep, or KV of before.
        assert waiting.result() == after[0]
    assert [tokens(site.gateway.url, prompt_of(number)) for number in range(6)] == after
