"""Bench: reference engines and a gateway in front of them, or a gateway before engines of yours."""

import asyncio
import re
import shutil
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from importlib.util import find_spec
from random import Random, SystemRandom
from time import monotonic

import httpx2

from pdgate.forwarders.base import Forwarder, Mode, Plain
from pdgate.lab.conformance.api import CALL_SECONDS, ApiRefused, ApiUnderTest
from pdgate.lab.conformance.asked import QUEUED, BadWish, Wanted, flag_of, url_of
from pdgate.lab.conformance.metrics import EngineUnderTest
from pdgate.lab.conformance.site import Made, Site, until
from pdgate.lab.processes import REDIS, START_SECONDS, ProcessFailed, Program, own_redis, running
from pdgate.protocols.extras import install

HOST = "127.0.0.1"
PDGATE = (sys.executable, "-m", "pdgate")
ENGINE_READY = r"pdgate engine ready (http://\S+) role=\S+ protocol=\S+(?: kv=(\S+))?"
GATEWAY_READY = r"pdgate listens on (http://\S+)"
REDIS_READY = r".*Ready to accept"
STARTS = 3
CONNECT_SECONDS = 5.0
IN_USE = "Address already in use"
GRACE_SECONDS = 2.0
"""At the end: what they serve is the run's alone, so nothing is lost by it."""
LEASE_SECONDS = 5.0
"""Of the engines that are started: what a leaver strands is free again while a check waits."""


class Bench:
    """The site of a run, and what starts more of it."""

    def __init__(self, wanted: Wanted, forwarder: Forwarder, mode: Mode) -> None:
        self._wanted = wanted
        self._forwarder = forwarder
        self._mode = mode
        self._queue = wanted.queue
        self._alone = wanted.alone
        self._salts = Random(wanted.salt) if wanted.salt else SystemRandom()
        # Everything is asked directly: no proxy of the environment may come between. Each time on a connection of its
        # own: a kept one that an engine closes (after 5 s, by uvicorn's default) as it is asked again would be its failure.
        self._http = httpx2.AsyncClient(
            trust_env=False,
            timeout=httpx2.Timeout(CALL_SECONDS, connect=CONNECT_SECONDS),
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=0),
        )

    @asynccontextmanager
    async def site(self) -> AsyncIterator[Site]:
        """Raises ProcessFailed, BadWish for engines of yours that do not answer."""
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self._http)
            if self._wanted.starts_engines:
                await self._start_shared(stack)
                plain = isinstance(self._forwarder, Plain)
                one: list[Made] = [()]
                yield await self._site(stack, [] if plain else one, one)
            else:
                yield await self._theirs(stack)

    @asynccontextmanager
    async def pairs(self, prefills: Sequence[Made], decodes: Sequence[Made]) -> AsyncIterator[Site]:
        async with AsyncExitStack() as stack:
            yield await self._site(stack, prefills, decodes)

    async def _site(
        self,
        stack: AsyncExitStack,
        prefills: Sequence[Made],
        decodes: Sequence[Made],
    ) -> Site:
        decode = "plain" if isinstance(self._forwarder, Plain) else "decode"
        roles = [*(("prefill", more) for more in prefills), *((decode, more) for more in decodes)]
        try:
            async with asyncio.TaskGroup() as group:
                started = [
                    group.create_task(self._engine(stack, role, more)) for role, more in roles
                ]
        except* ProcessFailed as failed:
            raise first_of(failed) from None
        engines = [one.result() for one in started]
        gateway = await self._gateway(stack, [engine.flag for engine in engines])
        count = len(prefills)
        return await self._made(gateway, engines[:count], engines[count:])

    async def _theirs(self, stack: AsyncExitStack) -> Site:
        wanted = self._wanted
        last = "plain" if isinstance(self._forwarder, Plain) else "decode"
        prefills, decodes = (
            [
                EngineUnderTest(ApiUnderTest(url_of(entry), self._http), flag_of(role, entry))
                for entry in entries
            ]
            for role, entries in (("prefill", wanted.prefills), (last, wanted.decodes))
        )
        for engine in (*prefills, *decodes):
            if not await engine.answers():
                raise BadWish(f"nobody answers at {engine.url}")
        # By default what they are compared with is one of their own: decode can do both.
        self._alone = self._alone or decodes[0].url
        if not await EngineUnderTest(
            ApiUnderTest(self._alone.rstrip("/"), self._http), ""
        ).answers():
            raise BadWish(f"nobody answers at {self._alone} (--alone)")
        if wanted.gateway:
            gateway = ApiUnderTest(wanted.gateway.rstrip("/"), self._http)
            # One that starts may take its time to be ready; one that is not there never will be.
            if not await EngineUnderTest(gateway, "").answers():
                raise BadWish(f"nobody answers at {gateway.url}")
        else:
            flags = [engine.flag for engine in (*prefills, *decodes)]
            gateway = await self._gateway(stack, flags)
        return await self._made(gateway, prefills, decodes)

    async def _made(
        self,
        gateway: ApiUnderTest,
        prefills: Sequence[EngineUnderTest],
        decodes: Sequence[EngineUnderTest],
    ) -> Site:
        await self._ready(gateway)
        listed = (await gateway.get("/v1/models")).json()["data"]
        model = self._wanted.model or listed[0]["id"]
        if model not in (one["id"] for one in listed):
            raise BadWish(f"--model {model}: the gateway has {', '.join(o['id'] for o in listed)}")
        return Site(
            self._forwarder,
            self._mode,
            gateway,
            prefills,
            decodes,
            ApiUnderTest(self._alone.rstrip("/"), self._http),
            model,
            self if self._wanted.starts_engines else None,
            f"{self._salts.getrandbits(32):08x}",
        )

    async def _start_shared(self, stack: AsyncExitStack) -> None:
        """What all engines of the run have in common: the queue, and the one to compare with."""
        if self._wanted.spoken == QUEUED and not self._queue:
            self._queue = await _redis(stack)
        if not self._alone:
            self._alone = (await self._engine(stack, "plain", ())).url

    async def _engine(self, stack: AsyncExitStack, role: str, more: Made) -> EngineUnderTest:
        if isinstance(more, EngineUnderTest):
            return more
        spoken = "plain" if role == "plain" else self._wanted.spoken
        # Nothing is handed over by an engine that works alone.
        pair = () if role == "plain" else ("--transfer", "shm", "--kv-host", HOST)
        queue = ("--queue", self._queue) if self._queue and role != "plain" else ()
        command = (
            *PDGATE, "engine", "--host", HOST, "--port", "0", "--role", role,
            "--pdd-protocol", spoken, "--lease-seconds", f"{LEASE_SECONDS:g}",
            "--shutdown-timeout", "0", *pair, *queue, *more,
        )  # fmt: skip
        for left in reversed(range(STARTS)):
            try:
                engine = await _started(stack, f"the {role} engine", command, ENGINE_READY)
                break
            except ProcessFailed as error:
                # Some engines take a port beside the one that the system gave them.
                if not left or IN_USE not in str(error):
                    raise
        url, kv = engine.announced.groups()
        flag = f"role={role},url={url}" + (f",kv={kv}" if kv else "")
        return EngineUnderTest(ApiUnderTest(url, self._http), flag)

    async def _gateway(self, stack: AsyncExitStack, instances: Sequence[str]) -> ApiUnderTest:
        generation = f",generation={self._wanted.generation}" if self._wanted.generation else ""
        engines = [word for one in instances for word in ("--instance", one + generation)]
        command = (
            *PDGATE, "serve", "--host", HOST, "--port", "0", "--debug-routes",
            "--pdd-protocol", self._wanted.protocol, "--scheduling-mode", self._mode.value,
            # What is checked is the protocol, so each call that can be split is.
            "--prefill-policy", "round_robin", "--decode-policy", "round_robin", *engines,
        )  # fmt: skip
        gateway = await _started(stack, "the gateway", command, GATEWAY_READY)
        return ApiUnderTest(gateway.announced[1], self._http)

    async def _ready(self, gateway: ApiUnderTest) -> None:
        async def why_not() -> str:
            try:
                await gateway.get("/ready")
            except (ApiRefused, httpx2.TransportError) as error:
                return str(error)
            return ""

        if told := await until(why_not, START_SECONDS, monotonic):
            raise ProcessFailed(f"the gateway at {gateway.url} is not ready: {told}")


def first_of(group: BaseExceptionGroup[ProcessFailed]) -> ProcessFailed:
    """The first failure: engines that fail to start together do so for one reason."""
    found = group.exceptions[0]
    return first_of(found) if isinstance(found, BaseExceptionGroup) else found


async def _started(stack: AsyncExitStack, name: str, command: Sequence[str], ready: str) -> Program:
    """One that is ready, until the stack ends. Raises ProcessFailed."""
    return await stack.enter_async_context(
        running(command, ready=re.compile(ready), name=name, grace_seconds=GRACE_SECONDS)
    )


async def _redis(stack: AsyncExitStack) -> str:
    """One of our own. Raises BadWish."""
    if find_spec("redis") is None:
        raise BadWish(f"{QUEUED} needs one more package: {install('redis')}")
    if shutil.which(REDIS) is None:
        raise BadWish(f"{QUEUED} needs a queue: install {REDIS}, or name a Redis by --queue")
    url, command = own_redis()
    await _started(stack, "Redis", command, REDIS_READY)
    return url
