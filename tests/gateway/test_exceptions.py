"""Who raises in one call does so alone, whatever other calls have met before, and meet meanwhile.

Where the hot path is compiled, the exception that a coroutine handles is kept where the thread
keeps it, so that waiting with one in hand hands it to everybody (tools/compiled_awaits.py).
"""

import asyncio
import sys

import pytest

from pdgate.protocols.instance import Role
from tests.support.fleet import (
    PATIENCE_SECONDS,
    Engine,
    Gateway,
    Held,
    ask,
    breaks_off,
    engine_error,
    gateway_of,
    says,
)
from tests.support.raw_server import Script

pytestmark = pytest.mark.usefixtures("front_end")

CLIENTS = 2400
AT_ONCE = 60


async def handled() -> list[BaseException]:
    """What a callback of the event loop would have as context, and that one's, and so on."""
    seen: asyncio.Future[BaseException | None] = asyncio.Future()
    loop = asyncio.get_running_loop()
    loop.call_soon(lambda: seen.set_result(sys.exc_info()[1]))
    error = await seen
    chain: list[BaseException] = []
    while error is not None and error not in chain:
        chain.append(error)
        error = error.__context__
    return chain


async def leaves(gateway: Gateway, held: Held, *, streams: bool) -> None:
    """Asks, and goes when the engine has the call; ends when the engine knows."""
    _, writer = await gateway.wire()
    writer.write(ask(stream=streams))
    call = await held.next()
    writer.close()
    await call.left


# The tasks of the other front end begin in uvicorn, which is interpreted.
@pytest.mark.parametrize("front_end", ["hot"], indirect=True)
@pytest.mark.parametrize("protocol", ["vllm-nixl", "sglang"])
async def test_clients_that_leave_leave_no_exception_behind(protocol: str) -> None:
    held = Held()
    engines = Engine(Role.PREFILL), Engine(Role.DECODE, held)
    async with gateway_of(*engines, pdd_protocol=protocol) as gateway:
        async with asyncio.timeout(PATIENCE_SECONDS * 6):
            for batch in range(CLIENTS // AT_ONCE):
                async with asyncio.TaskGroup() as together:
                    for _ in range(AT_ONCE):
                        leaving = leaves(gateway, held, streams=batch % 2 == 1)
                        together.create_task(leaving)
                gateway.writers.clear()

        assert await handled() == []


@pytest.mark.parametrize(
    "script",
    [
        pytest.param(breaks_off(), id="breaks off"),
        pytest.param(says(engine_error(b"503 Busy", "no")), id="is busy"),
        pytest.param(says(engine_error(b"400 Bad", "no")), id="rejects"),
    ],
)
@pytest.mark.parametrize("protocol", ["vllm-nixl", "vllm-kvt", "sglang"])
async def test_failing_engines_leave_no_exception_behind(script: Script, protocol: str) -> None:
    engines = Engine(Role.PREFILL, script), Engine(Role.DECODE, script)
    async with gateway_of(*engines, pdd_protocol=protocol) as gateway:
        async with asyncio.timeout(PATIENCE_SECONDS * 3), asyncio.TaskGroup() as together:
            asking = [together.create_task(gateway.chat()) for _ in range(AT_ONCE)]

        assert {task.result().status_code for task in asking} <= {400, 502, 503, 504}
        assert await handled() == []
