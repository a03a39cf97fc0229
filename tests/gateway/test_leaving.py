"""When the client leaves, all that was opened for it ends, at once and wherever it stood."""

import asyncio
import os
import statistics
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import pytest

from pdgate.protocols.instance import Role
from tests.support.fleet import (
    PATIENCE_SECONDS,
    STREAM_HEAD,
    Engine,
    Gateway,
    Held,
    HeldCall,
    ask,
    gateway_of,
)
from tests.support.own_time import own_seconds
from tests.support.raw_server import chunk

pytestmark = [
    pytest.mark.usefixtures("front_end"),
    pytest.mark.parametrize("front_end", ["asgi", "hot", "hypercorn"], indirect=True),
]

EVENT = b'data: {"choices": [{"text": "a"}]}\n\n'
LIMIT_SECONDS = 5.0
"""Of our own time (tests/support/own_time.py); 0.2 ms is usual."""

MEDIAN_SECONDS = 0.005
"""Beyond what as many ends of bare connections take, in the same moments."""

ROUNDS = int(os.environ.get("PDGATE_LEAVERS", "200"))

SERVING = {
    "RequestResponseCycle.run_asgi",
    "HotCycle._serve",
    "_cancel_when_client_leaves",
    "_watch_prefill",
}


def name_of(task: asyncio.Task[object]) -> str:
    return getattr(task.get_coro(), "__qualname__", "")


async def leaves(writer: asyncio.StreamWriter) -> float:
    """When it left."""
    writer.transport.abort()
    return own_seconds()


async def took(call: HeldCall, left_at: float) -> float:
    """Seconds until the engine saw the end of its connection."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        return await call.left - left_at


@asynccontextmanager
async def bare() -> AsyncIterator[Callable[[], Awaitable[float]]]:
    """Seconds until the end of a connection is seen where nothing is between its ends."""
    ends: asyncio.Queue[float] = asyncio.Queue()

    async def read(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            await reader.read()
        ends.put_nowait(own_seconds())
        writer.close()

    async with await asyncio.start_server(read, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]

        async def leave() -> float:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            left_at = await leaves(writer)
            return await ends.get() - left_at

        yield leave


async def settled(gateway: Gateway) -> None:
    """Nothing counts as in flight any more, and no task serves anybody."""
    serving = [task for task in asyncio.all_tasks() if name_of(task) in SERVING]
    if serving:
        _, left_over = await asyncio.wait(serving, timeout=PATIENCE_SECONDS)
        assert not left_over
    found = await gateway.metrics()
    assert found["pdgate_calls_in_flight",] == 0
    assert {found[key] for key in found if key[0] == "pdgate_instance_calls"} == {0}


async def test_a_client_that_leaves_in_prefill_ends_prefill() -> None:
    held = Held()
    async with gateway_of(Engine(Role.PREFILL, held), Engine(Role.DECODE)) as gateway:
        _, writer = await gateway.wire()
        writer.write(ask())
        call = await held.next()

        assert await took(call, await leaves(writer)) < LIMIT_SECONDS
        await settled(gateway)
        assert not gateway.engines[1].calls
        gone = "pdgate_calls_total", "m", "client_gone", "disaggregated", "vllm-nixl"
        assert (await gateway.metrics())[gone] == 1


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "said", [(), (STREAM_HEAD,), (STREAM_HEAD, chunk(EVENT))], ids=["nothing", "head", "event"]
)
async def test_a_client_that_leaves_in_decode_ends_decode(
    said: tuple[bytes, ...], stream: bool
) -> None:
    held = Held()
    async with gateway_of(Engine(Role.PREFILL), Engine(Role.DECODE, held)) as gateway:
        reader, writer = await gateway.wire()
        writer.write(ask(stream=stream))
        call = await held.next()
        await call.peer.send(*said)
        if stream and len(said) == 2:
            await reader.readuntil(EVENT)

        assert await took(call, await leaves(writer)) < LIMIT_SECONDS
        await settled(gateway)


async def test_a_client_that_leaves_ends_both_legs_of_a_rendezvous() -> None:
    at_prefill, at_decode = Held(), Held()
    engines = Engine(Role.PREFILL, at_prefill), Engine(Role.DECODE, at_decode)
    async with gateway_of(*engines, pdd_protocol="sglang") as gateway:
        _, writer = await gateway.wire()
        writer.write(ask(stream=True))
        calls = await at_prefill.next(), await at_decode.next()
        left_at = await leaves(writer)

        for call in calls:
            assert await took(call, left_at) < LIMIT_SECONDS
        await settled(gateway)


async def test_a_polite_client_is_noticed_as_fast() -> None:
    """FIN instead of RST."""
    held = Held()
    async with gateway_of(Engine(Role.PREFILL), Engine(Role.DECODE, held)) as gateway:
        _, writer = await gateway.wire()
        writer.write(ask(stream=True))
        call = await held.next()
        left_at = own_seconds()
        writer.close()

        assert await took(call, left_at) < LIMIT_SECONDS


async def test_a_client_that_leaves_half_way_through_its_body_leaves_nothing() -> None:
    async with gateway_of(Engine(Role.PREFILL), Engine(Role.DECODE)) as gateway:
        _, writer = await gateway.wire()
        writer.write(ask()[:-5])
        await writer.drain()
        await gateway.metrics()
        await leaves(writer)
        await settled(gateway)

        assert not gateway.engines[0].calls


async def test_many_leavers_leave_nothing_behind(capsys: pytest.CaptureFixture[str]) -> None:
    """Each at another point: in prefill, before decode's head, mid-stream."""
    at_prefill, at_decode = Held(), Held()
    prefill, decode = Engine(Role.PREFILL), Engine(Role.DECODE, at_decode)
    answers = prefill.script
    seconds = []
    by_comparison = []
    async with bare() as leave, gateway_of(prefill, decode) as gateway:
        await settled(gateway)
        tasks = len(asyncio.all_tasks())
        assert tasks < ROUNDS
        for number in range(ROUNDS):
            reader, writer = await gateway.wire()
            prefill.script = at_prefill if number % 3 == 0 else answers
            writer.write(ask(stream=True))
            call = await (at_prefill if number % 3 == 0 else at_decode).next()
            if number % 3 == 2:
                await call.peer.send(STREAM_HEAD, chunk(EVENT))
                await reader.readuntil(EVENT)
            seconds.append(await took(call, await leaves(writer)))
            by_comparison.append(await leave())
        await settled(gateway)

        # Probes come and go, and one idle connection to prefill may be kept.
        assert len(asyncio.all_tasks()) < tasks + ROUNDS // 10
        median, of_bare = statistics.median(seconds), statistics.median(by_comparison)
        with capsys.disabled():
            print(
                f" [left: median {median * 1e3:.2f} ms, worst {max(seconds) * 1e3:.2f} ms] ", end=""
            )
        assert median < MEDIAN_SECONDS + 3 * of_bare
