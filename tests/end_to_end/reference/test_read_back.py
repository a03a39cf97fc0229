"""`--read-back` over real processes: the next turn's prefill engine reads what decode has of the last one."""

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import httpx2
import pytest

from tests.end_to_end.reference.fleet import HTTP, Engine, Fleet, Gateway
from tests.support.waiting import wait_until
from tests.support.workers import only, workers_of

LONG = "A conversation that goes on for some time, and has a beginning that is worth keeping. " * 4


@dataclass(frozen=True)
class Site:
    prefills: tuple[Engine, Engine]
    decode: Engine
    gateway: Gateway
    single: Engine
    fleet: Fleet

    def say(self, messages: list[dict[str, str]], stream: bool = False, **more: Any) -> str:
        asked: dict[str, Any] = {"model": "pdgate-tiny", "max_tokens": 24, "temperature": 0}
        asked |= {"messages": messages, "stream": stream, "extra_body": more}
        create: Any = self.gateway.openai().chat.completions.create
        answer = create(**asked)
        if not stream:
            assert "kv_transfer_params" not in answer.model_dump()
            text: str = answer.choices[0].message.content
            return text
        chunks = list(answer)
        assert all("kv_transfer_params" not in chunk.model_dump() for chunk in chunks)
        return "".join(c.delta.content or "" for chunk in chunks for c in chunk.choices)

    @contextmanager
    def of_two_workers(self) -> Iterator["Site"]:
        """The same engines behind another gateway."""
        flags = ["--read-back", "--pdd-protocol", "vllm-nixl", "--prefill-policy", "round_robin"]
        flags += ["--decode", self.decode.url, "--workers", "2"]
        for each in self.prefills:
            flags += ["--prefill", each.url]
        with self.fleet.serve(*flags) as gateway:
            yield replace(self, gateway=gateway)

    def alone(self, messages: list[dict[str, str]]) -> str:
        asked = {"model": "pdgate-tiny", "max_tokens": 24, "temperature": 0, "messages": messages}
        answer = HTTP.post(f"{self.single.url}/v1/chat/completions", json=asked).json()
        text: str = answer["choices"][0]["message"]["content"]
        return text

    def outcome(self, name: str) -> float:
        lines = HTTP.get(f"{self.gateway.url}/metrics").text.splitlines()
        series = f'pdgate_kv_read_backs_total{{outcome="{name}"}} '
        return sum(float(line.removeprefix(series)) for line in lines if line.startswith(series))

    def computed(self) -> float:
        """Prompt tokens, by both prefill engines."""
        name = "vllm:prompt_tokens_by_source_total"
        return sum(one.metric(name, source="local_compute") for one in self.prefills)


@pytest.fixture(scope="module")
def site(fleet: Fleet) -> Iterator[Site]:
    with ExitStack() as running:
        own = Fleet(running, sys.executable)
        flags = ("--read-back", "--blocks", "512")
        one, two = (own.engine("prefill", "vllm-nixl", "shm", *flags) for _ in range(2))
        decode = own.engine("decode", "vllm-nixl", "shm", *flags)
        instances = [f"role=prefill,url={each.url}" for each in (one, two)]
        instances += [f"role=decode,url={decode.url}"]
        words = [word for each in instances for word in ("--instance", each)]
        policy = ("--prefill-policy", "round_robin")
        with own.serve("--read-back", "--pdd-protocol", "vllm-nixl", *policy, *words) as gateway:
            yield Site((one, two), decode, gateway, fleet.single(), own)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_the_second_turn_reads_what_decode_has_and_says_what_one_engine_says(
    site: Site, stream: bool
) -> None:
    first = [{"role": "user", "content": f"{stream}: {LONG}"}]
    before = site.computed()
    said = site.say(first, stream)
    assert said == site.alone(first)
    one_turn = site.computed() - before
    sent = site.outcome("sent")
    moved = [one.metric("pdgate_engine_kv_transfers_total") for one in site.prefills]

    second = [*first, {"role": "assistant", "content": said}, {"role": "user", "content": "And?"}]
    assert site.say(second, stream) == site.alone(second)

    # Its answer, the new message, and what of a block is behind the last whole one.
    assert site.computed() - before - one_turn < one_turn / 2
    assert site.outcome("sent") == sent + 1
    wait_until(
        lambda: (
            sum(one.metric("pdgate_engine_kv_transfers_total") for one in site.prefills)
            == sum(moved) + 1
        ),
        "one load at a prefill engine",
    )


def test_another_tenant_computes_the_same_conversation_anew(site: Site) -> None:
    first = [{"role": "user", "content": f"Mine: {LONG}"}]
    said = site.say(first, cache_salt="mine")
    sent = site.outcome("sent")
    second = [*first, {"role": "assistant", "content": said}, {"role": "user", "content": "And?"}]

    site.say(second, cache_salt="theirs")
    assert site.outcome("sent") == sent


def test_the_second_turn_may_reach_another_worker(site: Site) -> None:
    """What one worker has kept of the first is read back by the other."""
    first = [{"role": "user", "content": f"Workers: {LONG}"}]
    with site.of_two_workers() as of_two, ExitStack() as clients:
        one, other = (
            clients.enter_context(client_of(worker, of_two.gateway))
            for worker in workers_of(of_two.gateway.process)
        )
        said = spoken(one, first)
        # Each worker has a round of its own, and the other's is to begin with the engine that has read the first turn.
        spoken(other, [{"role": "user", "content": "Something else."}])
        second = [*first, {"role": "assistant", "content": said}, {"role": "user", "content": "?"}]
        before = site.computed()

        assert spoken(other, second) == site.alone(second)

        assert site.computed() - before < len(LONG) / 2
        wait_until(lambda: of_two.outcome("sent") == 1, "the read back of the other worker")


@contextmanager
def client_of(worker: int, gateway: Gateway) -> Iterator[httpx2.Client]:
    """It has one connection, which this worker has accepted."""
    with httpx2.Client(base_url=gateway.url, trust_env=False, timeout=60) as client:
        with only(worker, gateway.process):
            client.get("/health")
        yield client


def spoken(client: httpx2.Client, messages: list[dict[str, str]]) -> str:
    asked = {"model": "pdgate-tiny", "max_tokens": 24, "temperature": 0, "messages": messages}
    answer = client.post("/v1/chat/completions", json=asked)
    assert answer.status_code == 200, answer.text
    text: str = answer.json()["choices"][0]["message"]["content"]
    return text
