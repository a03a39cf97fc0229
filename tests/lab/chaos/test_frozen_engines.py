"""Two prefill and two decode engines under 40 streams, and one of them is stopped with SIGSTOP.

Its port takes connections and its kernel acknowledges what is sent, so only its silence tells. No
call may fail before its first byte, and none may wait for it longer than WAIT_SECONDS; the bound,
`health.frozen_seconds`, is what is set by default.
"""

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from pdgate.lab.chaos import until
from tests.lab.chaos.asking import MAX_TOKENS, PROMPTS
from tests.lab.chaos.topology import SPLIT, Topology
from tests.support.freezing import freeze, thaw
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


@pytest.mark.parametrize("role", ["prefill", "decode"])
@pytest.mark.parametrize("protocol", SPLIT)
async def test_no_call_waits_for_a_frozen_engine(
    fleet: Topology, right: dict[str, str], protocol: str, role: str
) -> None:
    victim = fleet.of(role, protocol)[0]
    answers: list[Waited] = []
    some = asyncio.Event()

    async def ask(number: int) -> Waited:
        prompt, url = PROMPTS[number % len(PROMPTS)], fleet.direct.url
        return await wait_for(fleet.http, url, model=protocol, prompt=prompt, max_tokens=MAX_TOKENS)

    async def call(number: int) -> None:
        answers.append(await ask(number))
        if len(answers) >= STREAMS // 8:
            some.set()

    async with asyncio.timeout(DEADLINE_SECONDS):
        async with asyncio.TaskGroup() as first:
            for number in range(STREAMS):
                first.create_task(call(number))
            await some.wait()
            freeze(victim.program.pid)
            try:
                async with asyncio.TaskGroup() as late:
                    for number in range(LATE):
                        late.create_task(call(number))
                while len(answers) < STREAMS + LATE:
                    some.clear()
                    await some.wait()
            finally:
                thaw(victim.program.pid)
        await until(fleet.direct.ready, "all engines to be up again")
        async with asyncio.TaskGroup() as well:
            undisturbed = [well.create_task(ask(number)) for number in range(STREAMS + LATE)]
    begun = [one for one in answers if one.broke_off]
    assert [one for one in begun if not right[one.prompt].startswith(one.text)] == []
    rest = [one for one in answers if one not in begun]
    assert [one for one in rest if not one.is_whole or one.text != right[one.prompt]] == []
    # What the same calls take on this machine where nothing is wrong is no wait.
    usual = max(task.result().silence for task in undisturbed)
    assert max(one.silence for one in answers) < WAIT_SECONDS + usual
    assert role == "decode" or begun == []
