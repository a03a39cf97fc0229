"""Two engines of each role and protocol, a proxy before each, and gateways over all of them.

                 .-- proxy -- p0, p1, d0, d1 of vllm-nixl     model "vllm-nixl"
    disturbed ---+-- proxy -- ... of vllm-kvt                 model "vllm-kvt"
                 +-- proxy -- ... of vllm-mooncake d          model "vllm-mooncake"
                 '-- proxy -- two plain engines               model "plain"
    resuming  ------ as disturbed, but goes on with streams that break off
    direct    ------ the same engines, without the proxies

A model is named like the protocol that its engines speak, so one gateway serves them all, and
calls of all protocols meet a fault at the same time. All engines have the same weights, so
they all say what `alone`, an engine that nobody disturbs, says.
"""

import asyncio
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass

import httpx2

from pdgate.lab.chaos import FaultProxy, Program, Rule, running, until
from tests.support.ports import free_port
from tests.support.scraped import samples

SPLIT = ("vllm-nixl", "vllm-kvt", "vllm-mooncake")
PROTOCOLS = (*SPLIT, "plain")
ALONE = "alone"

SILENCE_SECONDS = 6.0
"""After which the disturbed gateway gives an engine up. Engines take a hundredth of it here, and
beside much else ten or twenty times as much."""

AT_ONCE = 4
"""Engines that start. All fifteen at once would each take as long as all of them, and a start may not
take for ever."""

PDGATE = (sys.executable, "-m", "pdgate")


@dataclass(frozen=True, slots=True)
class Engine:
    """
    Attributes:
        id: "vllm-nixl/p0"; role and number within the protocol come last.
        kv: host:port of its KV side, the same after a restart; empty if it has none.
    """

    id: str
    role: str
    protocol: str
    url: str
    kv: str
    program: Program
    proxy: FaultProxy

    def flag(self, url: str) -> str:
        """For the gateway's --instance."""
        fields = {"id": self.id, "role": self.role, "url": url, "protocol": self.protocol}
        if self.kv and self.role == "prefill":
            fields["kv"] = self.kv
        if self.protocol == "vllm-mooncake":
            fields["generation"] = "d"
        return ",".join(f"{name}={value}" for name, value in fields.items())


class Gateway:
    """A running gateway, and what it says of itself."""

    def __init__(self, url: str, http: httpx2.AsyncClient) -> None:
        self.url = url
        self._http = http

    async def ready(self) -> bool:
        """It answers, and would send calls to every engine, none kept out for its failures."""
        try:
            up = await self._samples("pdgate_instance_up")
        except httpx2.ConnectError:
            return False
        kept_out = await self._samples("pdgate_instance_state", state="ejected")
        return bool(up) and all(up) and not any(kept_out)

    async def settled(self) -> bool:
        """No call is in flight, neither here nor at an instance."""
        here = await self._samples("pdgate_calls_in_flight")
        return not any(here + await self._samples("pdgate_instance_calls"))

    async def resumed(self) -> float:
        """How often an answer went on at another engine."""
        return sum(await self._samples("pdgate_broken_answers_total", result="resumed"))

    async def up(self, engine: Engine) -> bool:
        return bool(sum(await self._samples("pdgate_instance_up", instance=engine.id)))

    async def _samples(self, name: str, **labels: str) -> list[float]:
        return samples((await self._http.get(f"{self.url}/metrics")).text, name, **labels)


@dataclass(frozen=True, slots=True)
class Topology:
    """
    Attributes:
        alone: URL of an engine that nobody disturbs.
    """

    engines: Sequence[Engine]
    alone: str
    disturbed: Gateway
    resuming: Gateway
    direct: Gateway
    http: httpx2.AsyncClient

    def of(self, role: str, protocol: str = "") -> list[Engine]:
        """In order of their numbers. A plain engine does what a decode engine does."""
        roles = {"decode": ("decode", "plain")}.get(role, (role,))
        return [e for e in self.engines if e.role in roles and protocol in ("", e.protocol)]

    @contextmanager
    def faults(self, engines: Sequence[Engine], *rules: Rule) -> Iterator[None]:
        with ExitStack() as stack:
            for engine in engines:
                stack.enter_context(engine.proxy.plan(*rules))
            yield

    def injected(self, engines: Sequence[Engine]) -> int:
        """So far, by the proxies of these."""
        return sum(engine.proxy.journal.injected.total() for engine in engines)


@asynccontextmanager
async def topology() -> AsyncIterator[Topology]:
    wanted = [
        (role, protocol, f"{protocol}/{role[0]}{number}")
        for protocol in PROTOCOLS
        for role in (("plain",) if protocol == "plain" else ("prefill", "decode"))
        for number in range(2)
    ]
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=0)
    async with AsyncExitStack() as stack:
        http = await stack.enter_async_context(
            httpx2.AsyncClient(timeout=120, trust_env=False, limits=limits)
        )
        room = asyncio.Semaphore(AT_ONCE)
        async with asyncio.TaskGroup() as group:
            starting = [group.create_task(_engine(stack, room, *each)) for each in wanted]
            alone = group.create_task(_engine(stack, room, "plain", "plain", ALONE))
        engines = [task.result() for task in starting]
        async with asyncio.TaskGroup() as group:
            over_proxies = [engine.flag(engine.proxy.url) for engine in engines]
            disturbed = group.create_task(_gateway(stack, http, over_proxies, *_impatient()))
            resuming = group.create_task(
                _gateway(stack, http, over_proxies, *_impatient(), "--resume")
            )
            straight = [engine.flag(engine.url) for engine in engines]
            direct = group.create_task(_gateway(stack, http, straight))
        yield Topology(
            engines,
            alone.result().url,
            disturbed.result(),
            resuming.result(),
            direct.result(),
            http,
        )
        # All at once; the stack, one after the other, finds them ended.
        async with asyncio.TaskGroup() as group:
            for engine in [*engines, alone.result()]:
                group.create_task(engine.program.stop())


def _impatient() -> Sequence[str]:
    timeouts = ("--prefill-timeout", "--first-byte-timeout", "--idle-timeout")
    return [part for flag in timeouts for part in (flag, str(SILENCE_SECONDS))]


async def _engine(
    stack: AsyncExitStack, room: asyncio.Semaphore, role: str, protocol: str, id: str
) -> Engine:
    port, kv_port = free_port(), free_port()
    served = id if id == ALONE else protocol
    command = [
        *PDGATE, "engine", "--role", role, "--pdd-protocol", protocol,
        "--served-model-name", served, "--port", str(port), "--transfer", "shm",
        # Who still waits for an answer at the end waits for nothing.
        "--shutdown-timeout", "0",
    ]  # fmt: skip
    if role != "plain":
        command += ["--kv-port", str(kv_port)]
    async with room:
        program = await stack.enter_async_context(running(command, ready="pdgate engine ready"))
    url = f"http://127.0.0.1:{port}"
    proxy = await stack.enter_async_context(FaultProxy(url))
    kv = "" if role == "plain" else f"127.0.0.1:{kv_port}"
    return Engine(id, role, protocol, url, kv, program, proxy)


async def _gateway(
    stack: AsyncExitStack, http: httpx2.AsyncClient, instances: Sequence[str], *flags: str
) -> Gateway:
    named = [part for instance in instances for part in ("--instance", instance)]
    # Patient: an engine that is slow to say that it is well, on a busy machine, is not down.
    # And one that is back has its whole share of the calls, so that it meets the next fault.
    health = ("--health-interval", "1", "--health-timeout", "30", "--slow-start", "0")
    program = await stack.enter_async_context(
        running(
            [*PDGATE, "serve", "--port", "0", *health, *flags, *named], ready="pdgate listens on "
        )
    )
    gateway = Gateway(program.ready_line.split()[-1], http)
    await until(gateway.ready, "all engines to be up")
    return gateway
