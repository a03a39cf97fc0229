"""One prefill and one decode engine of each protocol, that things can happen to, behind gateways.

    batch      all protocols; Mooncake's generation d     batch-b, batch-c   Mooncake's others
    staged     those that can; Mooncake's generation a    alone              an engine by itself

A model is named like the protocol of its pair. All engines have the same weights, so each answer is
to be the one of `alone`. The engines keep KV for LEASE_SECONDS only, of which gateways know nothing:
so it is the engines that find out, and a load fails.
"""

import asyncio
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import httpx2

from pdgate.lab.chaos import Program, running, until
from tests.support.freezing import freeze, thaw
from tests.support.ports import free_port
from tests.support.redis import RedisServer, redis_server
from tests.support.scraped import scraped
from tests.support.waited import STREAMS, Waited, wait_for

ALONE: Final = "alone"
MOONCAKE: Final = "vllm-mooncake"
SPLIT: Final = ("vllm-nixl", "vllm-kvt", MOONCAKE)
PROTOCOLS: Final = (*SPLIT, "sglang", "neuron", "decode-first")

GATEWAYS: Final[Mapping[str, tuple[str, Sequence[str], str]]] = {
    # Its scheduling mode, the protocols behind it, and Mooncake's generation.
    "batch": ("batch", PROTOCOLS, "d"),
    "staged": ("staged", SPLIT, "a"),
    "batch-b": ("batch", (MOONCAKE,), "b"),
    "batch-c": ("batch", (MOONCAKE,), "c"),
}
WAYS: Final = [(name, model) for name, (_, models, _) in GATEWAYS.items() for model in models]

LEASE_SECONDS: Final = 2
FROZEN_SECONDS: Final = 8
"""Of silence, after which gateways leave an engine; 10 by default. On a busy machine it takes more than 3 until all
streams wait for it."""

TOKENS: Final = 24
SLOW_TOKEN_MS: Final = 20
PROMPT: Final = "the quick brown fox jumps over the lazy dog. " * 3
DEADLINE_SECONDS: Final = 120

PDGATE: Final = (sys.executable, "-m", "pdgate")


@dataclass(frozen=True, slots=True)
class Half:
    """An engine, which has the same addresses after a restart."""

    url: str
    kv: str
    program: Program

    def freeze(self) -> None:
        freeze(self.program.pid)

    def thaw(self) -> None:
        thaw(self.program.pid)


@dataclass(frozen=True, slots=True)
class Asked:
    """One stream, and what its client has at the end."""

    gateway: str
    model: str
    api: str
    answer: Waited
    right: str

    @property
    def is_right(self) -> bool:
        return self.answer.is_whole and self.answer.text == self.right

    @property
    def failed_before_its_first_byte(self) -> bool:
        return self.answer.failed_clearly and not self.answer.finished and not self.answer.text

    @property
    def broke_off(self) -> bool:
        """With an error event, and nothing that is not so."""
        answer = self.answer
        return answer.broke_off and not answer.done and self.right.startswith(answer.text)


@dataclass(frozen=True, slots=True)
class Site:
    """
    Attributes:
        live: Streams that have begun and not ended, by their API.
        right: What `alone` says, by prompt, API and tokens; no two ways ask the same.
    """

    prefill: Mapping[str, Half]
    decode: Mapping[str, Half]
    gateways: Mapping[str, str]
    alone: str
    redis: RedisServer
    http: httpx2.AsyncClient
    live: Counter[str] = field(default_factory=Counter)
    right: dict[tuple[str, str, int], str] = field(default_factory=dict)

    async def ask_all(self, tokens: int = TOKENS) -> list[Asked]:
        """Every API by every way, at once."""
        async with asyncio.timeout(DEADLINE_SECONDS), asyncio.TaskGroup() as group:
            asking = [
                group.create_task(self._ask(gateway, model, api, tokens))
                for gateway, model in WAYS
                for api in STREAMS
            ]
        return [task.result() for task in asking]

    async def learn(self, tokens: int = TOKENS) -> None:
        """What is right."""
        async with asyncio.timeout(DEADLINE_SECONDS), asyncio.TaskGroup() as group:
            for gateway, model in WAYS:
                for api in STREAMS:
                    group.create_task(self._learn(f"{gateway} {model}", api, tokens))

    async def _learn(self, way: str, api: str, tokens: int) -> None:
        if (way, api, tokens) not in self.right:
            answer = await self._stream(self.alone, ALONE, way, api, tokens)
            assert answer.is_whole, answer
            self.right[way, api, tokens] = answer.text

    async def _ask(self, gateway: str, model: str, api: str, tokens: int) -> Asked:
        way = f"{gateway} {model}"
        url = self.gateways[gateway]
        answer = await self._stream(url, model, way, api, tokens)
        if answer.text:
            self.live[api] -= 1
        return Asked(gateway, model, api, answer, self.right[way, api, tokens])

    async def _stream(self, url: str, model: str, way: str, api: str, tokens: int) -> Waited:
        path, more = STREAMS[api]
        asked = {"prompt": f"{way} {api}, {PROMPT}", "max_tokens": tokens, "path": path, **more}

        def begun() -> None:
            if url != self.alone:
                self.live[api] += 1

        return await wait_for(self.http, url, model=model, begun=begun, **asked)

    async def calls(self, gateway: str, **labels: str) -> float:
        return await scraped(self.http, self.gateways[gateway], "pdgate_calls_total", **labels)

    async def handed_over(self) -> float:
        name, result = "pdgate_kv_handover_total", "handed_over"
        return sum(
            [await scraped(self.http, url, name, result=result) for url in self.gateways.values()]
        )

    async def loading(self, model: str) -> float:
        """Calls whose KV its decode engine waits for."""
        return await scraped(self.http, self.decode[model].url, "pdgate_engine_requests_loading")

    async def asked_of(self, gateway: str, model: str, role: str) -> float:
        url, name = self.gateways[gateway], "pdgate_instance_calls"
        return await scraped(self.http, url, name, instance=f"{model}/{role}")

    async def ready(self) -> bool:
        """All engines are up at each gateway, and nothing is left of earlier calls."""
        for url in self.gateways.values():
            if (await self.http.get(f"{url}/ready")).status_code != 200:
                return False
            down = [scraped(self.http, url, "pdgate_instance_state", state=state) for state in OUT]
            if any([await one for one in down]):
                return False
            if await scraped(self.http, url, "pdgate_calls_in_flight"):
                return False
        return True


OUT: Final = ("down", "ejected", "starting")


async def each(halves: Iterable[Half], what: str) -> None:
    """Starts or kills them all at once."""
    async with asyncio.TaskGroup() as group:
        for half in halves:
            group.create_task(getattr(half.program, what)())


@asynccontextmanager
async def lone_pairs(folder: Path) -> AsyncIterator[Site]:
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=0)
    with redis_server(folder) as redis:
        queue = f"{redis.url}?redeliver_seconds=2"
        async with (
            AsyncExitStack() as stack,
            httpx2.AsyncClient(timeout=DEADLINE_SECONDS, trust_env=False, limits=limits) as http,
        ):
            async with asyncio.TaskGroup() as group:
                starting = {
                    (role, model): group.create_task(_half(stack, role, model, queue))
                    for model in PROTOCOLS
                    for role in ("prefill", "decode")
                }
                alone = group.create_task(_half(stack, "plain", ALONE, ""))
            halves = {key: task.result() for key, task in starting.items()}
            async with asyncio.TaskGroup() as group:
                gateways = {
                    name: group.create_task(_gateway(stack, name, halves)) for name in GATEWAYS
                }
            site = Site(
                {model: halves["prefill", model] for model in PROTOCOLS},
                {model: halves["decode", model] for model in PROTOCOLS},
                {name: task.result() for name, task in gateways.items()},
                alone.result().url,
                redis,
                http,
            )
            await until(site.ready, "all engines to be up")
            yield site
            await each([*halves.values(), alone.result()], "stop")


async def _half(stack: AsyncExitStack, role: str, model: str, queue: str) -> Half:
    port, kv_port = free_port(), free_port(1)
    protocol = "plain" if role == "plain" else model
    command = [
        *(*PDGATE, "engine", "--role", role, "--pdd-protocol", protocol),
        *("--served-model-name", model, "--port", str(port), "--transfer", "tcp"),
        *("--lease-seconds", str(LEASE_SECONDS), "--shutdown-timeout", "0"),
    ]
    if role == "decode":
        command += ["--min-itl-ms", str(SLOW_TOKEN_MS)]
    if role != "plain":
        # Who has a prompt's KV already would wait for none.
        command += ["--kv-port", str(kv_port), "--no-prefix-cache"]
    if model == "decode-first":
        command += ["--queue", queue]
    program = await stack.enter_async_context(running(command, ready="pdgate engine ready"))
    kv = program.ready_line.partition(" kv=")[2].split(" ")[0]
    return Half(f"http://127.0.0.1:{port}", kv, program)


async def _gateway(stack: AsyncExitStack, name: str, halves: Mapping[tuple[str, str], Half]) -> str:
    """Its URL."""
    mode, models, generation = GATEWAYS[name]
    instances = []
    for (role, model), half in halves.items():
        if model in models:
            fields = {"id": f"{model}/{role}", "role": role, "url": half.url, "protocol": model}
            if role == "prefill" and half.kv:
                fields["kv"] = half.kv
            if model == MOONCAKE:
                fields["generation"] = generation
            instances += ["--instance", ",".join(f"{key}={of}" for key, of in fields.items())]
    # Whoever is back has calls at once, and on a busy machine may be slow to say that it is well.
    health = ("--health-interval", "0.5", "--health-timeout", "30", "--slow-start", "0")
    frozen = ("--frozen-after", str(FROZEN_SECONDS))
    serve = [*PDGATE, "serve", "--port", "0", "--scheduling-mode", mode]
    program = await stack.enter_async_context(
        running([*serve, *health, *frozen, *instances], ready="pdgate listens on ")
    )
    return program.ready_line.split()[-1]
