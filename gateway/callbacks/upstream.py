"""Upstream of legs that wait for a word of an engine, or name the gateway to one; made where there are callbacks."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import msgspec

from pdgate.forwarders.base import Answer, Awaited, Leg, Upstream
from pdgate.gateway.callbacks.words import Words
from pdgate.protocols.call import Call, Json
from pdgate.protocols.errors import EngineTooSlow


class CallbackUpstream(Upstream):
    """
    Attributes:
        seconds: That an engine may take to say its word.
    """

    def __init__(self, inner: Upstream, words: Words, url: str, seconds: float) -> None:
        self._inner = inner
        self._words = words
        self._url = url
        self.seconds = seconds

    async def ask(self, leg: Leg, call: Call) -> Json:
        if leg.awaits is not None:
            leg = await self._heard(leg, leg.awaits)
        return await self._inner.ask(self._addressed(leg), call)

    def open(
        self,
        leg: Leg,
        call: Call,
        *,
        loads: bool = False,
        within: float | None = None,
        behind: str = "",
    ) -> AbstractAsyncContextManager[Answer]:
        if leg.awaits is not None:
            return self._opened(leg, leg.awaits, call, behind)
        leg = self._addressed(leg)
        return self._inner.open(leg, call, loads=loads, within=within, behind=behind)

    @asynccontextmanager
    async def _opened(
        self, leg: Leg, awaited: Awaited, call: Call, behind: str
    ) -> AsyncIterator[Answer]:
        leg = self._addressed(await self._heard(leg, awaited))
        # What the other engine has done by now, decode need not wait for.
        async with self._inner.open(leg, call, loads=True, behind=behind) as answer:
            yield answer

    def _addressed(self, leg: Leg) -> Leg:
        if leg.addressed is None:
            return leg
        return msgspec.structs.replace(leg, body=leg.addressed(self._url))

    async def _heard(self, leg: Leg, awaited: Awaited) -> Leg:
        """The leg as it is sent, when the word has been said. Raises EngineTooSlow."""
        with self._words.expecting(awaited.key) as word:
            try:
                async with asyncio.timeout(self.seconds):
                    said = await asyncio.shield(word)
            except TimeoutError:
                raise EngineTooSlow(
                    f"the engine did not call back within {self.seconds:g} s", at=awaited.by
                ) from None
        return (
            leg if awaited.write is None else msgspec.structs.replace(leg, body=awaited.write(said))
        )
