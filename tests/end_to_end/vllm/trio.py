"""Two prefill engines and a decode engine, which may also ask for prefill by a queue on Redis.

    p1, p2, d     PdgateConnector over tcp          a worker beside p1 takes prompts from the queue

Gateways over them: by `WAYS`, each patient (tests freeze engines to hold something up) and watchful
(silence is what the test asks about).
"""

import asyncio
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from signal import SIGCONT, SIGSTOP
from typing import Any, Final

import httpx2

from pdgate.lab.chaos import until
from tests.end_to_end.vllm.asking import client, complete, prompt
from tests.end_to_end.vllm.engines import (
    BLOCK,
    MODEL,
    PDGATE_TCP,
    START_SECONDS,
    Engine,
    Fleet,
    Transfer,
    ready,
)
from tests.end_to_end.vllm.gateway import Gateway, gateway_over
from tests.end_to_end.vllm.metrics import held_share, metric
from tests.support.ports import LOOPBACK, free_port
from tests.support.processes import Child, child
from tests.support.redis import RedisServer, redis_server
from tests.support.waited import STREAMS, Waited, wait_for

WAYS: Final = (("vllm-kvt", "batch"), ("vllm-kvt", "staged"), ("decode-first", "batch"))
BY_QUEUE: Final = WAYS[2]
SPLIT: Final = ("completions", "completions with usage", "chat", "chat with usage")
"""What these ways hand KV over for; of STREAMS, the others are asked of decode alone."""

ALL_BLOCKS: Final = 256
LEAST_BLOCKS: Final = 4
"""Of each prompt here."""

TOKENS: Final = 24
DEADLINE_SECONDS: Final = 300.0
"""For streams of one test on a busy machine."""


@dataclass(frozen=True)
class Trio:
    prefills: Sequence[Engine]
    decode: Engine
    worker: Child
    redis: RedisServer
    serve: Sequence[str]
    transfer: Transfer = PDGATE_TCP

    async def waits(self, calls: int) -> None:
        """Until decode has so many calls whose KV does not come."""
        blocks = calls * LEAST_BLOCKS

        async def there() -> bool:
            return await asyncio.to_thread(held_share, self.decode) * ALL_BLOCKS >= blocks

        await until(there, "calls whose KV decode waits for", DEADLINE_SECONDS)

    async def is_free(self) -> None:
        async def nothing() -> bool:
            return await asyncio.to_thread(held_share, self.decode) == 0

        await until(nothing, "decode to hold nothing", DEADLINE_SECONDS)


def with_queue(flags: Sequence[str], url: str) -> list[str]:
    """`--kv-transfer-config` with one option more."""
    flag, text = flags
    said: dict[str, Any] = json.loads(text)
    extra: Mapping[str, Any] = said["kv_connector_extra_config"]
    return [flag, json.dumps({**said, "kv_connector_extra_config": {**extra, "queue": url}})]


@contextmanager
def running_trio(fleet: Fleet, folder: Path) -> Iterator[Trio]:
    with ExitStack() as stack:
        redis = stack.enter_context(redis_server(folder))
        starting = []
        for name, role in (("p1", "kv_producer"), ("p2", "kv_producer"), ("d", "kv_consumer")):
            port, kv_port = free_port(), free_port()
            flags = PDGATE_TCP.flags(role, port, kv_port)
            if name == "d":
                flags = with_queue(flags, redis.url)
            starting.append((fleet.start(stack, f"trio-{name}", port, flags), port, kv_port))
        kv = [f"{LOOPBACK}:{kv_port}" for *_, kv_port in starting]
        # Before p1 is there: it waits until p1 is well.
        at = ["--engine", f"http://{LOOPBACK}:{starting[0][1]}", "--kv", kv[0]]
        words = ["--queue", redis.url, "--model", str(fleet.model), *at]
        command = [sys.executable, "-m", "pdgate", "prefill-worker", *words]
        log = fleet.logs / "trio-worker.log"
        worker = stack.enter_context(child(command, log=log, name="prefill-worker"))
        p1, p2, decode = (ready(process, port) for process, port, _ in starting)
        worker.wait_for_line("takes prompts for", START_SECONDS)
        for engine in (p1, p2, decode):
            # One that has never served a call may be compiling, and is not judged.
            with client(engine.url) as direct:
                complete(direct, prompt(BLOCK, "warm"), max_tokens=4)
        serve = [
            *PDGATE_TCP.prefill_flag(p1.url, kv[0]),
            *PDGATE_TCP.prefill_flag(p2.url, kv[1]),
            *("--decode", decode.url, "--prefill-policy", "round_robin"),
        ]
        yield Trio([p1, p2], decode, worker, redis, serve)


Gateways = Mapping[tuple[str, str], Gateway]


@contextmanager
def gateways_over(trio: Trio, fleet: Fleet, *flags: str) -> Iterator[Gateways]:
    with ExitStack() as stack:
        yield {
            (protocol, mode): stack.enter_context(
                gateway_over(trio, mode, fleet.logs, protocol, flags)
            )
            for protocol, mode in WAYS
        }


@contextmanager
def stopped(*engines: Engine) -> Iterator[None]:
    """All of their processes."""
    for engine in engines:
        engine.process.signal(SIGSTOP)
    try:
        yield
    finally:
        for engine in engines:
            engine.process.signal(SIGCONT)


@dataclass(frozen=True, slots=True)
class Asked:
    way: tuple[str, str]
    api: str
    answer: Waited
    right: Waited

    @property
    def is_right(self) -> bool:
        return self.answer.is_whole and self.answer.text == self.right.text


async def stream(http: httpx2.AsyncClient, url: str, api: str, salt: str) -> Waited:
    path, more = STREAMS[api]
    asked: Any = prompt(LEAST_BLOCKS * BLOCK + 3, salt)
    if not api.startswith("completions"):
        asked = f"What is {salt}? " * 8
    return await wait_for(
        http, url, path=path, prompt=asked, max_tokens=TOKENS, model=MODEL, **more
    )


class Asking:
    """Each API by each way at once, and of `alone` before; no two prompts share a block."""

    def __init__(self, gateways: Gateways, alone: Engine, salt: str, apis: Sequence[str]) -> None:
        self._gateways = gateways
        self._alone = alone
        self._all = [
            (way, api, f"{salt} {way} {api} {number}")
            for way in gateways
            for number, api in enumerate(apis)
        ]

    async def during(self, strike: Callable[[], Any]) -> list[Asked]:
        """`strike` runs beside them, as they begin."""
        limits = httpx2.Limits(max_connections=None, max_keepalive_connections=0)
        async with (
            httpx2.AsyncClient(timeout=DEADLINE_SECONDS, trust_env=False, limits=limits) as http,
            asyncio.timeout(DEADLINE_SECONDS),
        ):
            right = await self._each(http, lambda way: self._alone.url)
            async with asyncio.TaskGroup() as group:
                asking = group.create_task(self._each(http, lambda way: self._gateways[way].url))
                group.create_task(strike())
        answers = zip(self._all, asking.result(), right, strict=True)
        return [Asked(way, api, answer, well) for (way, api, _), answer, well in answers]

    async def _each(
        self, http: httpx2.AsyncClient, url_of: Callable[[tuple[str, str]], str]
    ) -> list[Waited]:
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(stream(http, url_of(way), api, salt))
                for way, api, salt in self._all
            ]
        return [task.result() for task in tasks]


async def counted(gateway: Gateway, outcome: str = "") -> float:
    labels = {"outcome": outcome} if outcome else {}
    there = Engine(gateway.url, gateway.process)
    return await asyncio.to_thread(lambda: metric(there, "pdgate_calls_total", **labels))
