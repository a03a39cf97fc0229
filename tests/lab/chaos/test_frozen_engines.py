"""Two prefill and two decode engines under 40 streams, and one of them is stopped with SIGSTOP.

Its port takes connections and its kernel acknowledges what is sent, so only its silence tells. No
call may fail before its first byte, and none may wait for it longer than WAIT_SECONDS; the bound,
`health.frozen_seconds`, is what is set by default.
"""

import asyncio
from collections.abc import AsyncIterator
from itertools import product

import pytest
import pytest_asyncio

from pdgate.lab.chaos import until
from tests.lab.chaos.asking import MAX_TOKENS, PROMPTS
from tests.lab.chaos.topology import SPLIT, Engine, Topology
from tests.support.freezing import freeze, thaw
from tests.support.scraped import scraped
from tests.support.waited import Waited, wait_for

STREAMS = 40
LATE = 10
"""Besides, when it is frozen already."""

WAIT_SECONDS = 15.0
DEADLINE_SECONDS = 120.0

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="package")]


@pytest_asyncio.fixture(loop_scope="package")
async def fleet(running_topology: Topology) -> AsyncIterator[Topology]:
    await until(running_topology.direct.ready, "all engines to be up")
    yield running_topology
    await until(running_topology.direct.settled, "nothing to be in flight")


async def busiest(fleet: Topology, role: str, protocol: str) -> Engine:
    """It has read most of the prompts, so those that come later go there."""
    engines = fleet.of(role, protocol)
    ended = [await scraped(fleet.http, one.url, "vllm:request_success_total") for one in engines]
    return engines[ended.index(max(ended))]


@pytest.mark.parametrize("role", ["prefill", "decode"])
async def test_no_call_waits_for_a_frozen_engine(
    fleet: Topology, right: dict[str, str], role: str
) -> None:
    """One of each protocol at the same moment, so that their silence is waited for once."""
    answers: dict[str, list[Waited]] = {protocol: [] for protocol in SPLIT}
    more = asyncio.Event()

    async def ask(protocol: str, number: int) -> Waited:
        prompt, url = PROMPTS[number % len(PROMPTS)], fleet.direct.url
        return await wait_for(fleet.http, url, model=protocol, prompt=prompt, max_tokens=MAX_TOKENS)

    async def call(protocol: str, number: int) -> None:
        answers[protocol].append(await ask(protocol, number))
        more.set()

    async def each_has(count: int) -> None:
        while any(len(those) < count for those in answers.values()):
            more.clear()
            await more.wait()

    async with asyncio.timeout(DEADLINE_SECONDS):
        async with asyncio.TaskGroup() as calls:
            for protocol, number in product(SPLIT, range(STREAMS)):
                calls.create_task(call(protocol, number))
            await each_has(STREAMS // 8)
            victims = [await busiest(fleet, role, protocol) for protocol in SPLIT]
            for victim in victims:
                freeze(victim.program.pid)
            try:
                for protocol, number in product(SPLIT, range(LATE)):
                    calls.create_task(call(protocol, number))
                await each_has(STREAMS + LATE)
            finally:
                for victim in victims:
                    thaw(victim.program.pid)
        await until(fleet.direct.ready, "all engines to be up again")
        async with asyncio.TaskGroup() as well:
            undisturbed = [
                well.create_task(ask(protocol, number))
                for protocol, number in product(SPLIT, range(STREAMS + LATE))
            ]
    # What the same calls take on this machine where nothing is wrong is no wait.
    usual = max(task.result().silence for task in undisturbed)
    for protocol, those in answers.items():
        begun = [one for one in those if one.broke_off]
        assert [one for one in begun if not right[one.prompt].startswith(one.text)] == [], protocol
        rest = [one for one in those if one not in begun]
        assert [one for one in rest if not one.is_whole or one.text != right[one.prompt]] == [], (
            protocol
        )
        assert max(one.silence for one in those) < WAIT_SECONDS + usual, protocol
        assert role == "decode" or begun == [], protocol
