"""Upstream client: sends legs to engines, the Upstream contract over HTTP.

async with HttpUpstream(UpstreamSettings()) as upstream:
    reply = await upstream.ask(prefill_leg, call)
    async with upstream.open(decode_leg, call) as answer:
        answer.start(sink)
"""

import asyncio
import ssl
from collections.abc import Coroutine, Mapping
from dataclasses import replace
from typing import Any, Self

from pdgate.forwarders.base import Leg
from pdgate.gateway.deadlines import Deadlines, Timeouts
from pdgate.gateway.turns import ParseTurns
from pdgate.gateway.upstream.connection import UpstreamConnection
from pdgate.gateway.upstream.contracts import AnswerMemory
from pdgate.gateway.upstream.exchange import Exchange
from pdgate.gateway.upstream.failures import naming
from pdgate.gateway.upstream.pool import Pool, UrlTarget
from pdgate.gateway.upstream.settings import UpstreamSettings
from pdgate.gateway.upstream.shortage import RETRY_AFTER_SECONDS, is_ours
from pdgate.protocols.call import Call, Raw
from pdgate.protocols.errors import EngineRefused, GatewayShort
from pdgate.protocols.instance import DECODE, PREFILL, Instance


class HttpUpstream:
    """Usable inside its `async with` block, which closes all connections at its end.

    Attributes:
        short: Connections that could not be opened for want of a socket of ours.
        max_reply_bytes: Of an answer that is read here.
        memory: Of answers that are held until they are whole; None for no bound.
        loop, deadlines: From the beginning of the block on.
    """

    def __init__(self, settings: UpstreamSettings | None = None) -> None:
        self.short = 0
        self.memory: AnswerMemory | None = None
        self._settings = settings or UpstreamSettings()
        self.max_reply_bytes = self._settings.max_reply_bytes
        self._tls = self._settings.tls
        self._pools: dict[str, Pool] = {}
        self._turns = ParseTurns()

    async def __aenter__(self) -> Self:
        self.loop = asyncio.get_running_loop()
        self.deadlines = Deadlines(self.loop)
        return self

    async def __aexit__(self, *_: object) -> None:
        live = [connection for pool in self._pools.values() for connection in pool.live]
        for pool in list(self._pools.values()):
            pool.close()
        for connection in live:
            await connection.closed
        self.deadlines.close()

    @property
    def connections(self) -> int:
        """Open ones, free or not."""
        return sum(len(pool.live) for pool in self._pools.values())

    def use(self, timeouts: Timeouts, of_models: Mapping[str | None, Timeouts]) -> None:
        """From the next leg on."""
        self._settings = replace(self._settings, timeouts=timeouts, timeouts_of=of_models)

    def ask(self, leg: Leg, call: Call) -> Coroutine[Any, Any, dict[str, Raw]]:
        """The whole JSON answer of a leg, its values still raw."""
        # An instance of both roles is asked for a whole answer when it is to prefill.
        settings = self._settings
        times = self._times(call) if settings.timeouts_of else settings.timeouts
        decodes = leg.to.role is DECODE
        seconds = times.first_byte_seconds if decodes else times.prefill_seconds
        # By position, as every call is asked here.
        return Exchange(
            leg, call, self._pools.get(leg.to.url), self, seconds, times.idle_seconds
        ).reply()  # fmt: skip

    def legs(self) -> list[Exchange]:
        """Legs that wait for an engine and have a deadline: not those whose client is slow to read."""
        return [it for it in self.deadlines.watched if isinstance(it, Exchange)]

    def open(
        self,
        leg: Leg,
        call: Call,
        *,
        loads: bool = False,
        within: float | None = None,
        behind: str = "",
    ) -> Exchange:
        """An answer with a good status. Leaving the block before its end closes the connection."""
        settings = self._settings
        times = self._times(call) if settings.timeouts_of else settings.timeouts
        if loads:
            seconds = times.kv_wait_seconds
        elif leg.to.role is PREFILL:
            seconds = times.prefill_seconds
        else:
            seconds = times.first_byte_seconds
        if within is not None and (seconds is None or within < seconds):
            seconds = within
        free = self._pools.get(leg.to.url)
        if leg.passed is not None and not call.may_be_repeated:
            # Of one that had served it would be unknown whether the engine closed it before it read this.
            free = None
        return Exchange(
            leg, call, free, self, seconds, times.idle_seconds, behind, loads, True
        )  # fmt: skip

    def _times(self, call: Call) -> Timeouts:
        """Where models have some of their own."""
        settings = self._settings
        return settings.timeouts_of.get(call.model, settings.timeouts)

    async def on_new(self, exchange: Exchange) -> None:
        """Sends it on a connection that is opened for it. Raises EngineRefused."""
        engine = exchange.leg.to
        pool = self._pool(engine)
        connection = await self._connect(pool, engine)
        if pool.idle and not exchange.call.may_be_repeated:
            # Those take none that is free, and leave one each.
            pool.close_oldest()
        pool.send_on(connection, exchange)

    async def _connect(self, pool: Pool, engine: Instance) -> UpstreamConnection:
        try:
            return await pool.connect(self._settings.timeouts.connect_seconds)
        except TimeoutError as error:
            message = f"{naming(engine)} did not accept a connection in time"
            raise EngineRefused(message, at=engine.id) from error
        # UnicodeError: a host name that IDNA cannot encode.
        except (OSError, UnicodeError) as error:
            if is_ours(error):
                self.short += 1
                raise GatewayShort(
                    "the gateway has no socket to spare", retry_after_seconds=RETRY_AFTER_SECONDS
                ) from error
            raise EngineRefused(f"{naming(engine)} cannot be reached", at=engine.id) from error

    def _pool(self, engine: Instance) -> Pool:
        """Several instances (data-parallel ranks) may share a URL, and so connections."""
        pool = self._pools.get(engine.url)
        if pool is None:
            try:
                target = UrlTarget(engine.url, self._settings.authorization)
            except ValueError as error:
                message = f"{naming(engine)} has no address that can be used"
                raise EngineRefused(message, at=engine.id) from error
            if target.secure and self._tls is None:
                self._tls = ssl.create_default_context()
            pool = self._pools[engine.url] = Pool(
                target,
                self._tls if target.secure else None,
                self._settings.server_name,
                self._settings.forwarded,
                self._settings.keep_idle_seconds,
                self.deadlines,
                self.loop,
                self._turns,
                lambda: self._forget(engine.url),
            )
        return pool

    def _forget(self, url: str) -> None:
        """Fleets change: what has no connection takes no memory."""
        self._pools.pop(url, None)
