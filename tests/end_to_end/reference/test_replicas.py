"""Two gateways on one Redis: they load engines as one would, and no call needs that Redis."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from pdgate.protocols.call import CHAT
from pdgate.protocols.instance import Role
from tests.end_to_end.reference.fleet import Fleet
from tests.support.fleet import ANSWER, Engine, as_json, question
from tests.support.raw_server import Peer, raw_server
from tests.support.redis import RedisServer, redis_server
from tests.support.scraped import samples

PATIENCE_SECONDS = 180.0
ENGINES = 5
CALLS = 50
AS_ONE = 1.15
"""How much worse the imbalance of two gateways may be than that of one."""

pytestmark = pytest.mark.slow


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RedisServer]:
    with redis_server(tmp_path) as server:
        yield server


class Site:
    """Engines that keep each call until it is told to end.

    Attributes:
        keeps: Else a call that comes is answered at once.
        running: By engine, what ends each call that is there.
    """

    def __init__(self) -> None:
        self.engines = [Engine(Role.PLAIN, self._keeps(number)) for number in range(ENGINES)]
        self.keeps = True
        self.running: list[list[asyncio.Event]] = [[] for _ in range(ENGINES)]
        self._came: asyncio.Queue[int] = asyncio.Queue()
        self._asking: dict[asyncio.Event, asyncio.Task[httpx2.Response]] = {}

    @property
    def calls(self) -> list[int]:
        return [len(running) for running in self.running]

    @property
    def imbalance(self) -> float:
        """The calls of the busiest engine, by those of the mean."""
        return max(self.calls) * ENGINES / sum(self.calls)

    async def begin(self, calls: int, through: httpx2.AsyncClient) -> None:
        """One after the other, each when the one before has come to its engine."""
        for _ in range(calls):
            asking = asyncio.create_task(through.post(CHAT, json=question()))
            engine = await self._came.get()
            self._asking[self.running[engine][-1]] = asking

    async def end(self, *engines: int) -> None:
        """All calls that are there."""
        for engine in engines:
            for ends in self.running[engine]:
                ends.set()
                assert (await self._asking.pop(ends)).status_code == 200
            self.running[engine].clear()

    def _keeps(self, engine: int) -> Any:
        async def script(peer: Peer) -> None:
            if not self.keeps:
                await peer.send(as_json(ANSWER))
                return
            ends = asyncio.Event()
            self.running[engine].append(ends)
            self._came.put_nowait(engine)
            await ends.wait()
            await peer.send(as_json(ANSWER))

        return script


@asynccontextmanager
async def gateways(fleet: Fleet, *flags: str) -> AsyncIterator[list[httpx2.AsyncClient]]:
    """Two of them."""
    async with AsyncExitStack() as stack:
        clients = []
        for _ in range(2):
            running = fleet.serve(*flags)
            gateway = await asyncio.to_thread(running.__enter__)
            stack.push_async_callback(asyncio.to_thread, running.__exit__, None, None, None)
            limits = httpx2.Limits(max_connections=None)
            clients.append(
                await stack.enter_async_context(
                    httpx2.AsyncClient(
                        base_url=gateway.url,
                        trust_env=False,
                        timeout=PATIENCE_SECONDS,
                        limits=limits,
                    )
                )
            )
        yield clients


async def calls_elsewhere(gateway: httpx2.AsyncClient) -> list[float]:
    """What the gateway has heard of others', at each engine."""
    return samples((await gateway.get("/metrics")).text, "pdgate_instance_replica_calls")


async def fifty_calls(site: Site, one: httpx2.AsyncClient, other: httpx2.AsyncClient) -> float:
    """The imbalance of what is in flight, when engines had ended very different numbers of calls.

    Half of the calls, which are there first, go through the one, and the others through the other.
    """
    await site.begin(CALLS // 2, one)
    await site.end(0, 1, 2)
    left = site.calls
    for _ in range(CALLS - sum(left)):
        # For each, as on a very busy machine a lease may end early.
        while one is not other and await calls_elsewhere(other) != left:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        await site.begin(1, other)
    found = site.imbalance
    await site.end(*range(ENGINES))
    return found


async def hears(gateway: httpx2.AsyncClient, state: str, others: int) -> None:
    """Waits until it says that of its replicas; it is ready all the time."""
    while True:
        answer = await gateway.get("/ready")
        assert answer.status_code == 200
        if answer.json()["replicas"] == {"state": state, "others": others}:
            return
        await asyncio.sleep(0.02)


@asynccontextmanager
async def fifty_callers(*gateways: httpx2.AsyncClient) -> AsyncIterator[Counter[int]]:
    """They ask without a pause, each through one gateway. Yields how often they got which status."""
    over, statuses = asyncio.Event(), Counter[int]()

    async def asks(gateway: httpx2.AsyncClient) -> None:
        while not over.is_set():
            statuses[(await gateway.post(CHAT, json=question())).status_code] += 1

    async with asyncio.TaskGroup() as callers:
        for number in range(CALLS):
            callers.create_task(asks(gateways[number % len(gateways)]))
        try:
            yield statuses
        finally:
            over.set()


async def answers(statuses: Counter[int], more: int = 2 * CALLS) -> None:
    goal = statuses.total() + more
    while statuses.total() < goal:  # noqa: ASYNC110
        await asyncio.sleep(0.02)


async def test_two_replicas_load_engines_as_one_would_and_no_call_needs_their_redis(
    own_fleet: Fleet, redis: RedisServer
) -> None:
    """It is killed under fifty callers and comes back empty; then all is as before."""
    site = Site()
    async with AsyncExitStack() as stack, asyncio.timeout(PATIENCE_SECONDS):
        servers = [await stack.enter_async_context(raw_server(e.serve)) for e in site.engines]
        flags = [word for one in servers for word in ("--instance", f"role=plain,url={one.url}")]
        # A busy machine is not to look like an engine that hangs.
        flags += ["--health-timeout", "30", "--redis", redis.url]
        one, other = both = await stack.enter_async_context(gateways(own_fleet, *flags))
        for gateway in both:
            await hears(gateway, "current", others=1)

        alone = await fifty_calls(site, one, one)
        together = await fifty_calls(site, one, other)

        site.keeps = False
        async with fifty_callers(one, other) as statuses:
            await answers(statuses)
            await asyncio.to_thread(redis.stop)
            for gateway in both:
                await hears(gateway, "degraded", others=0)
            await answers(statuses)
            redis.forget()
            await asyncio.to_thread(redis.start)
            for gateway in both:
                await hears(gateway, "current", others=1)
            await answers(statuses)
        site.keeps = True
        afterwards = await fifty_calls(site, one, other)

    assert set(statuses) == {200}
    assert together <= AS_ONE * alone
    assert afterwards <= AS_ONE * alone
