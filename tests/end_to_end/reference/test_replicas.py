"""Two gateways on one Redis: they load engines as one would, and no call needs that Redis."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from prometheus_client.parser import text_string_to_metric_families

from pdgate.protocols.call import CHAT
from pdgate.protocols.instance import Role
from tests.end_to_end.reference.callers import Callers
from tests.end_to_end.reference.fleet import Fleet, Gateway
from tests.support.fleet import ANSWER, Engine, as_json, question
from tests.support.raw_server import Peer, raw_server
from tests.support.redis import RedisServer, redis_server

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
        running: By engine, what ends each call that is there.
    """

    def __init__(self) -> None:
        self.engines = [Engine(Role.PLAIN, self._keeps(number)) for number in range(ENGINES)]
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
    page = (await gateway.get("/metrics")).text
    return [
        sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if sample.name == "pdgate_instance_replica_calls"
    ]


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


async def test_two_replicas_load_engines_as_one_would(own_fleet: Fleet, redis: RedisServer) -> None:
    site = Site()
    async with AsyncExitStack() as stack, asyncio.timeout(PATIENCE_SECONDS):
        servers = [await stack.enter_async_context(raw_server(e.serve)) for e in site.engines]
        flags = [word for one in servers for word in ("--instance", f"role=plain,url={one.url}")]
        # A busy machine is not to look like an engine that hangs.
        flags += ["--health-timeout", "30", "--redis", redis.url]
        both = gateways(own_fleet, *flags)
        one, other = await stack.enter_async_context(both)

        alone = await fifty_calls(site, one, one)
        together = await fifty_calls(site, one, other)

    assert together <= AS_ONE * alone


def test_no_call_fails_when_redis_is_killed_and_comes_back_empty(
    own_fleet: Fleet, redis: RedisServer
) -> None:
    flags = ("--instance", f"role=plain,url={own_fleet.single().url}")
    with ExitStack() as stack:
        both = [
            stack.enter_context(own_fleet.serve("--redis", redis.url, *flags)) for _ in range(2)
        ]
        for gateway in both:
            says(gateway, "current", others=1)
        callers = [stack.enter_context(Callers(gateway, 4, tokens=16).asking()) for gateway in both]
        for one in callers:
            one.wait_for(8)

        redis.stop()
        for gateway, one in zip(both, callers, strict=True):
            says(gateway, "degraded", others=0)
            one.wait_for(8)
        redis.forget()
        redis.start()
        for gateway, one in zip(both, callers, strict=True):
            says(gateway, "current", others=1)
            one.wait_for(8)


def says(gateway: Gateway, state: str, others: int) -> None:
    """Waits until it is ready and says that of its replicas."""

    def said() -> bool:
        answer = httpx2.get(f"{gateway.url}/ready")
        assert answer.status_code == 200
        return bool(answer.json()["replicas"] == {"state": state, "others": others})

    gateway.process.wait_until(said, f"replicas {state} on /ready", PATIENCE_SECONDS)
