"""Two prefill and two decode engines under 40 calls at once, and one of them is killed.

The moment is a count of answers, drawn with a seed. No call may fail before its first byte,
no answer may be wrong, and the engine is used again when it is back. One round of it is run;
PDGATE_KILL_ROUNDS=20 runs as many, each at other moments.
"""

import asyncio
import os
from collections.abc import AsyncIterator
from random import Random

import pytest
import pytest_asyncio

from pdgate.lab.chaos import until
from tests.lab.chaos.asking import PROMPTS, Asked, ask
from tests.lab.chaos.topology import SPLIT, Engine, Gateway, Topology

CALLS = 40
DEADLINE_SECONDS = 120.0
SEED = 5
ROUNDS = int(os.environ.get("PDGATE_KILL_ROUNDS", "1"))

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="package")]


@pytest_asyncio.fixture(loop_scope="package")
async def fleet(running_topology: Topology) -> AsyncIterator[Topology]:
    await until(running_topology.direct.ready, "all engines to be up")
    yield running_topology
    await until(running_topology.direct.settled, "nothing to be in flight")


async def ask_and_kill(
    fleet: Topology, gateway: Gateway, victim: Engine, moment: int
) -> list[Asked]:
    """All calls at once; the victim dies when so many have their answer."""
    answers: list[Asked] = []
    now = asyncio.Event()

    async def call(number: int) -> None:
        prompt = PROMPTS[number % len(PROMPTS)]
        stream = number // len(PROMPTS) % 2 == 0
        url, model = gateway.url, victim.protocol
        answers.append(await ask(fleet.http, url, model, prompt, stream=stream))
        if len(answers) >= moment:
            now.set()

    async with asyncio.timeout(DEADLINE_SECONDS), asyncio.TaskGroup() as group:
        for number in range(CALLS):
            group.create_task(call(number))
        await now.wait()
        await victim.program.kill()
    return answers


@pytest.mark.parametrize("role", ["prefill", "decode"])
@pytest.mark.parametrize("protocol", SPLIT)
@pytest.mark.parametrize("number", range(ROUNDS))
async def test_no_call_is_lost_when_an_engine_is_killed(
    fleet: Topology, right: dict[str, str], protocol: str, role: str, number: int
) -> None:
    random = Random(f"{SEED + number}/{protocol}/{role}")
    victim = fleet.of(role, protocol)[random.randrange(2)]

    moment = random.randrange(1, CALLS // 2)
    answers = await ask_and_kill(fleet, fleet.direct, victim, moment)
    try:
        assert len(answers) == CALLS
        # What had begun at the decode engine that was killed cannot go on elsewhere; it may have
        # said all but that this was all.
        begun = [one for one in answers if one.status == 200 and one.error and role == "decode"]
        assert [one for one in begun if not right[one.prompt].startswith(one.text)] == []
        assert [one for one in answers if not one.said(right) and one not in begun] == []
    finally:
        await victim.program.start()
    await until(fleet.direct.ready, "the engine to be used again")
    after = await ask(fleet.http, fleet.direct.url, protocol, PROMPTS[0])
    assert after.said(right)


@pytest.mark.parametrize("protocol", SPLIT)
@pytest.mark.parametrize("number", range(ROUNDS))
async def test_no_call_fails_at_all_where_broken_streams_go_on(
    fleet: Topology, right: dict[str, str], protocol: str, number: int
) -> None:
    random = Random(f"{SEED + number}/{protocol}/resumed")
    victim = fleet.of("decode", protocol)[random.randrange(2)]
    await until(fleet.resuming.ready, "all engines to be up")

    moment = random.randrange(1, CALLS // 2)
    answers = await ask_and_kill(fleet, fleet.resuming, victim, moment)
    try:
        assert len(answers) == CALLS
        assert [one for one in answers if not one.said(right)] == []
    finally:
        await victim.program.start()
    await until(fleet.resuming.ready, "the engine to be used again")
