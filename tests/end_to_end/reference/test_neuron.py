"""Neuron's two generations over real processes: what two engines say is what one would.

zmq      two P and two D that know of nobody; a gateway finds them in etcd
static   two pairs of a P and a D that know each other, and nobody else
nixl     a P and a D of the successor's kind
"""

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.end_to_end.reference.callers import ask
from tests.end_to_end.reference.fleet import Engine, Fleet, Gateway
from tests.end_to_end.reference.test_same_tokens import PROMPTS, Counts, counts, said
from tests.support.etcd import etcd_server
from tests.support.waiting import wait_until

BY_BOTH = pytest.mark.parametrize("chat", [False, True], ids=["completions", "chat"])
EITHER_WAY = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])


@dataclass(frozen=True)
class Site:
    gateway: Gateway
    prefills: list[Engine]
    decodes: list[Engine]
    hands_first_token: bool = True


@pytest.fixture(scope="module", params=["zmq", "static", "nixl"])
def site(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Site]:
    start = {"zmq": dynamic, "static": static, "nixl": successor}[request.param]
    with start(tmp_path_factory.mktemp("etcd")) as started:
        yield started


@contextmanager
def dynamic(folder: Path) -> Iterator[Site]:
    with ExitStack() as running, etcd_server(folder) as etcd:
        fleet = Fleet(running, sys.executable)
        listed = ("--etcd", etcd.endpoints[0])
        prefills = [fleet.engine("prefill", "neuron", "shm", *listed) for _ in range(2)]
        decodes = [fleet.engine("decode", "neuron", "shm", *listed) for _ in range(2)]
        # By what is in flight alone, and drawn among equals: by latency, an engine that was slow once on a busy
        # machine is left out for as long as the others are idle.
        chosen = ("--prefill-policy", "least_loaded")
        with fleet.serve(*listed, *chosen, "--debug-headers") as gateway:
            yield Site(gateway, prefills, decodes)


@contextmanager
def static(_: Path) -> Iterator[Site]:
    with ExitStack() as running:
        fleet = Fleet(running, sys.executable)
        flags = ["--pdd-protocol", "neuron", "--neuron-generation", "static"]
        prefills, decodes = [], []
        for name in ("a", "b"):
            prefills.append(fleet.engine("prefill", "neuron", "tcp"))
            peer = prefills[-1].url.removeprefix("http://")
            decodes.append(fleet.engine("decode", "neuron", "tcp", "--peer", peer))
            for engine, role in ((prefills[-1], "prefill"), (decodes[-1], "decode")):
                flags += [
                    "--instance",
                    f"role={role},url={engine.url},pair={name},id={role}-{name}",
                ]
        # Whoever is chosen for prefill at random: crossed halves would wait for each other.
        flags += ["--prefill-policy", "random_two", "--decode-policy", "random_two"]
        with fleet.serve(*flags, "--debug-headers") as gateway:
            yield Site(gateway, prefills, decodes)


@contextmanager
def successor(_: Path) -> Iterator[Site]:
    """Its engines are vLLM with NIXL, and so are ours; `neuron` is the gateway's word."""
    with ExitStack() as running:
        fleet = Fleet(running, sys.executable)
        prefill, decode = (fleet.engine(role, "vllm-nixl", "tcp") for role in ("prefill", "decode"))
        flags = ("--pdd-protocol", "neuron", "--neuron-generation", "nixl")
        mode = ("--scheduling-mode", "staged")
        with fleet.serve(
            *flags, *mode, "--prefill", prefill.url, "--decode", decode.url
        ) as gateway:
            yield Site(gateway, [prefill], [decode], hands_first_token=False)


def total(engines: list[Engine]) -> Counts:
    return Counts(*map(sum, zip(*map(counts, engines), strict=True)))


@pytest.mark.matrix("site", "chat", "stream")
@BY_BOTH
@EITHER_WAY
def test_the_answer_is_the_single_engines(
    site: Site, fleet: Fleet, chat: bool, stream: bool
) -> None:
    before = total(site.decodes)

    for prompt in PROMPTS.values():
        answer = said(site.gateway.url, prompt, chat, stream)
        assert answer == said(fleet.single().url, prompt, chat, stream)

    came = total(site.decodes).since(before)
    assert came.answers == len(PROMPTS)
    # Decode begins behind prefill's first token, or computes the last one of each prompt.
    assert came.computed == (0 if site.hands_first_token else len(PROMPTS))


def test_prompts_in_a_list_are_answered_each(site: Site, fleet: Fleet) -> None:
    def answered(url: str) -> list[str]:
        answer = (
            Gateway(url, site.gateway.process)
            .openai()
            .completions.create(
                model="pdgate-tiny", prompt=list(PROMPTS.values()), max_tokens=4, temperature=0
            )
        )
        return [choice.text for choice in answer.choices]

    assert answered(site.gateway.url) == answered(fleet.single().url)


@pytest.mark.parametrize("site", ["zmq"], indirect=True)
def test_every_pair_of_two_and_two_is_used(site: Site) -> None:
    """In lock step, as the reference chooses, two of the four would do all the work."""
    met = set()

    def all_met() -> bool | None:
        call = site.gateway.openai().completions.with_raw_response.create(
            model="pdgate-tiny", prompt="Who is with whom?", max_tokens=1
        )
        met.add((call.headers["x-pd-prefill"], call.headers["x-pd-decode"]))
        return len(met) == 4 or None

    site.gateway.process.wait_until(all_met, "all four pairs")


@pytest.mark.parametrize("site", ["static"], indirect=True)
def test_static_pairs_are_not_crossed(site: Site) -> None:
    met = set()

    def both_met() -> bool | None:
        call = site.gateway.openai().completions.with_raw_response.create(
            model="pdgate-tiny", prompt="Who is with whom?", max_tokens=2
        )
        met.add((call.headers["x-pd-prefill"], call.headers["x-pd-decode"]))
        return len(met) == 2 or None

    site.gateway.process.wait_until(both_met, "both pairs")
    assert met == {("prefill-a", "decode-a"), ("prefill-b", "decode-b")}


def test_the_client_has_prefills_token_while_decode_has_yet_to_take_its_turn(fleet: Fleet) -> None:
    """Decode has said that it took the call, as vLLM does at once, and has no place for it yet."""
    prompt = PROMPTS["many blocks"]
    with ExitStack() as running:
        own = Fleet(running, sys.executable)
        prefill = own.engine("prefill", "neuron", "tcp")
        slow = ("--head-first", "--max-num-seqs", "1", "--min-itl-ms", "50")
        decode = own.engine("decode", "neuron", "tcp", *slow)
        flags = ("--pdd-protocol", "neuron", "--prefill", prefill.url, "--decode", decode.url)
        gateway = running.enter_context(own.serve(*flags))
        busy = running.enter_context(ThreadPoolExecutor(1)).submit(
            ask, Gateway(decode.url, decode.process), prompt, 120
        )
        wait_until(lambda: decode.metric("vllm:num_requests_running") == 1, "a full batch")

        with gateway.openai().completions.create(
            model="pdgate-tiny", prompt=prompt, max_tokens=4, temperature=0, stream=True
        ) as events:
            text = ""
            for event in events:
                text += event.choices[0].text
                if len(text) == 1:
                    assert decode.metric("vllm:num_requests_waiting") == 1
                    assert not busy.done()

        assert text == said(fleet.single().url, prompt, False, True)[0][: len(text)]
        assert busy.result()


def test_tokens_that_are_drawn_are_those_of_prefill(site: Site) -> None:
    """Without a seed no two engines draw alike, and the stream would contradict itself."""
    for number in range(5):
        with site.gateway.openai().completions.create(
            model="pdgate-tiny",
            prompt=f"{number} is a number",
            max_tokens=8,
            temperature=1.5,
            stream=True,
            extra_body={"ignore_eos": True},
        ) as events:
            reasons = [choice.finish_reason for event in events for choice in event.choices]
        assert reasons[-1] == "length"
