"""`--give-way` over real processes: two answers of low urgency hold both places at decode, one of them as a stream,
and both give way to ordinary calls. What everybody gets is what is said where nothing gives way."""

import signal
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial

import pytest

from tests.end_to_end.reference.fleet import HTTP, Engine, Fleet, Gateway, client
from tests.support.waiting import wait_until

LOW = {"x-priority": "7"}
PROMPTS = "Of the first one: to be, or not to be.", "Of the second one, which is said as a stream."
ORDINARY = "A short question that cannot wait. ", "Another one of the same kind, too. "
TOKENS, FEW = 300, 80
"""The long ones take nine seconds, in which the others have to come; these hold both places for two and a half, or the
second would get the place of the first. Half as long was once too short beside other tests."""


Site = tuple[Gateway, Engine, list[Engine]]


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with ExitStack() as running:
        fleet = Fleet(running, sys.executable)
        prefill = fleet.engine("prefill", "vllm-nixl", "tcp")
        decodes = [
            fleet.engine("decode", "vllm-nixl", "tcp", "--min-itl-ms", "30") for _ in range(2)
        ]
        flags = [word for one in decodes for word in ("--decode", one.url)]
        where = f"role=prefill,url={prefill.url},kv={prefill.kv}"
        # Whatever the pace of the line, one that waits is late.
        limits = "--decode-concurrency", "1", "--give-way", "2", "--ttft-target", "0.05"
        with fleet.serve(
            "--instance", where, *flags, "--pdd-protocol", "vllm-nixl", *limits
        ) as gateway:
            yield gateway, prefill, decodes
        # It would wait for the decode engine that a test has killed to fetch what it keeps for that.
        prefill.process.signal(signal.SIGKILL)


def said(
    at: Gateway | Engine, prompt: str, tokens: int, stream: bool = False, **headers: str
) -> str:
    """Raises what the official client raises for anything but a whole answer."""
    create = client(at.url).completions.create
    more = {"ignore_eos": True}
    if not stream:
        whole = create(
            model="pdgate-tiny",
            prompt=prompt,
            max_tokens=tokens,
            temperature=0,
            extra_body=more,
            extra_headers=headers,
        )
        assert whole.choices[0].finish_reason == "length"
        assert whole.usage is not None
        assert whole.usage.completion_tokens == tokens
        return whole.choices[0].text
    with create(
        model="pdgate-tiny",
        prompt=prompt,
        max_tokens=tokens,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
        extra_body=more,
        extra_headers=headers,
    ) as events:
        found = list(events)
    usage = found[-1].usage
    assert usage is not None
    assert usage.completion_tokens == tokens
    assert len({event.id for event in found}) == 1
    return "".join(event.choices[0].text for event in found if event.choices)


def times(gateway: Gateway) -> float:
    lines = HTTP.get(f"{gateway.url}/metrics").text.splitlines()
    return sum(float(one.split()[-1]) for one in lines if one.startswith("pdgate_calls_gave_way_"))


def has_said(decode: Engine, tokens: float) -> bool:
    return decode.metric("vllm:generation_tokens_total") > tokens


def both_run(site: Site, pool: ThreadPoolExecutor) -> "list[Future[str]]":
    """Two answers of low urgency, each of which has said something."""
    gateway, _, decodes = site
    before = [one.metric("vllm:generation_tokens_total") for one in decodes]
    low = [
        pool.submit(said, gateway, prompt, TOKENS, stream, **LOW)
        for prompt, stream in zip(PROMPTS, (False, True), strict=True)
    ]
    for one, tokens in zip(decodes, before, strict=True):
        wait_until(partial(has_said, one, tokens + 3), "an answer at each decode engine")
    return low


@pytest.fixture(scope="module")
def expected(site: Site) -> list[str]:
    """What one engine says by itself, and without a pause between its tokens."""
    _, alone, _ = site
    asked = [(prompt, TOKENS) for prompt in PROMPTS] + [(prompt, FEW) for prompt in ORDINARY]
    return [said(alone, *each) for each in asked]


def test_both_give_way_and_all_that_is_said_is_right(site: Site, expected: list[str]) -> None:
    gateway, _, _ = site
    with ThreadPoolExecutor(4) as pool:
        low = both_run(site, pool)
        urgent = [pool.submit(said, gateway, prompt, FEW) for prompt in ORDINARY]
        assert [one.result() for one in urgent] == expected[2:]
        assert times(gateway) == 2
        assert [one.result() for one in low] == expected[:2]


def test_none_is_lost_when_an_engine_dies_meanwhile(site: Site, expected: list[str]) -> None:
    gateway, _, decodes = site
    before = times(gateway)
    with ThreadPoolExecutor(4) as pool:
        low = both_run(site, pool)
        urgent = [pool.submit(said, gateway, prompt, FEW) for prompt in ORDINARY]
        wait_until(lambda: times(gateway) >= before + 2, "both to give way")
        decodes[0].process.signal(signal.SIGKILL)

        assert [one.result() for one in urgent] == expected[2:]
        assert [one.result() for one in low] == expected[:2]
