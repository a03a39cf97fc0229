"""The gateway over engines that misbehave: an answer is right, or it is clearly an error.

Each test asks with all protocols at once, streamed and whole. In the end nothing may be in
flight, neither at the gateway nor at an engine.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest
import pytest_asyncio

from pdgate.lab.chaos import (
    Corrupt,
    Cut,
    Delay,
    Fault,
    HalfOpen,
    Refuse,
    Rule,
    SlowReader,
    Stall,
    until,
)
from tests.lab.chaos.asking import PROMPTS, Asked, ask
from tests.lab.chaos.topology import PROTOCOLS, SPLIT, Topology

DEADLINE_SECONDS = 60.0
"""Far above what any of them takes: what hangs fails here."""

MOST_ANSWERS = 1000

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="package")]

FAULTS: dict[str, Fault] = {
    "refuse": Refuse(),
    "delay": Delay(0.2),
    "cut": Cut(),
    "cut in the head": Cut(10, reset=True),
    "stall": Stall(),
    "corrupt": Corrupt(),
    "slow reader": SlowReader(5000),
    "half open": HalfOpen(),
}
"""All of them before the first byte of an answer's body."""


@pytest_asyncio.fixture(loop_scope="package")
async def fleet(running_topology: Topology) -> AsyncIterator[Topology]:
    """All engines are up before, and nothing is in flight afterwards."""
    await until(running_topology.disturbed.ready, "all engines to be up")
    yield running_topology
    await until(running_topology.disturbed.settled, "nothing to be in flight")


async def ask_all(fleet: Topology, models: Sequence[str] = PROTOCOLS) -> list[Asked]:
    """Each model at once: two short prompts as a stream, two long ones whole."""
    url = fleet.disturbed.url
    async with asyncio.timeout(DEADLINE_SECONDS), asyncio.TaskGroup() as group:
        asking = [
            group.create_task(ask(fleet.http, url, model, prompt, stream=len(prompt) < 50))
            for model in models
            for prompt in PROMPTS
        ]
    return [task.result() for task in asking]


@pytest.mark.parametrize(
    ("role", "name"),
    [
        (role, name)
        for role in ("prefill", "decode")
        for name in FAULTS
        # The silent ones take seconds, so each is one role's.
        if (role, name) not in (("prefill", "half open"), ("decode", "stall"))
    ],
)
async def test_one_bad_engine_costs_nobody_an_answer(
    fleet: Topology, right: dict[str, str], role: str, name: str
) -> None:
    """Nothing has gone to the client yet, so the other engine of the role takes the call."""
    bad = [engine for engine in fleet.of(role) if engine.id.endswith("0")]
    before = fleet.injected(bad)

    with fleet.faults(bad, Rule(FAULTS[name])):
        answers = await ask_all(fleet, PROTOCOLS if role == "decode" else SPLIT)
        # Where the others have all these prompts' prefixes, it takes more calls until they are too busy.
        while fleet.injected(bad) == before and len(answers) < MOST_ANSWERS:
            async with asyncio.TaskGroup() as group:
                more = [
                    group.create_task(ask_all(fleet, PROTOCOLS if role == "decode" else SPLIT))
                    for _ in range(4)
                ]
            answers += [one for task in more for one in task.result()]

    assert fleet.injected(bad) > before
    assert [one for one in answers if not one.said(right)] == []


@pytest.mark.parametrize(
    ("name", "status", "codes"),
    [
        ("corrupt", 502, {"engine_failed", "call_breaks_engines"}),
        ("cut", 502, {"engine_failed", "call_breaks_engines"}),
        ("stall", 504, {"engine_timeout"}),
    ],
)
async def test_where_all_decode_engines_fail_the_error_says_so(
    fleet: Topology, name: str, status: int, codes: set[str]
) -> None:
    """Two that fail alike look like a call that breaks engines."""
    with fleet.faults(fleet.of("decode"), Rule(FAULTS[name])):
        answers = await ask_all(fleet, PROTOCOLS)

    assert [one for one in answers if not one.failed_clearly] == []
    assert {one.status for one in answers} == {status}
    assert {one.error["code"] for one in answers} <= codes


async def test_where_all_prefill_engines_refuse_decode_does_without(
    fleet: Topology, right: dict[str, str]
) -> None:
    # With vllm-kvt, decode asks prefill by itself: the gateway sends it no request.
    with fleet.faults(fleet.of("prefill"), Rule(Refuse())):
        answers = await ask_all(fleet, ("vllm-nixl", "vllm-mooncake"))

    # Both hang up on every call; the first one that meets both is taken for the cause.
    accused = [one for one in answers if not one.said(right)]
    assert {one.error.get("code") for one in accused} <= {"call_breaks_engines"}
    assert len({one.model for one in accused}) == len(accused)


async def test_an_answer_that_breaks_off_is_a_beginning_and_says_so(
    fleet: Topology, right: dict[str, str]
) -> None:
    """A stream ends with an error, and anything else not at all: nothing is made up."""
    streamed = [prompt for prompt in PROMPTS if len(prompt) < 50]
    url = fleet.disturbed.url

    with fleet.faults(fleet.of("decode"), Rule(Cut(1500))):
        async with asyncio.timeout(DEADLINE_SECONDS), asyncio.TaskGroup() as group:
            asking = [
                group.create_task(ask(fleet.http, url, model, prompt, stream=True))
                for model in PROTOCOLS
                for prompt in streamed
            ]

    for one in (task.result() for task in asking):
        assert 0 < len(one.text) < len(right[one.prompt]), one
        assert right[one.prompt].startswith(one.text), one
        assert one.failed_clearly, one


async def test_a_host_that_is_gone_is_done_without(fleet: Topology, right: dict[str, str]) -> None:
    [gone, _] = fleet.of("decode", "vllm-nixl")

    async with gone.proxy.away():
        answers = await ask_all(fleet, ["vllm-nixl"])

    assert [one for one in answers if not one.said(right)] == []
