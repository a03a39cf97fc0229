"""Upstream of legs that wait for a word of an engine, or name the gateway to one; made where there are callbacks."""

import asyncio
from contextlib import AbstractAsyncContextManager

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
        leg = self._addressed(leg)
        awaited = leg.awaits
        if awaited is None:
            return await self._inner.ask(leg, call)
        with self._words.expecting(awaited.key) as word:
            if awaited.write is None:
                reply = await self._inner.ask(leg, call)
                await self._said(word, awaited)
                return reply
            body = awaited.write(await self._said(word, awaited))
            return await self._inner.ask(msgspec.structs.replace(leg, body=body), call)

    def open(
        self,
        leg: Leg,
        call: Call,
        *,
        loads: bool = False,
        within: float | None = None,
        behind: str = "",
    ) -> AbstractAsyncContextManager[Answer]:
        leg = self._addressed(leg)
        return self._inner.open(leg, call, loads=loads, within=within, behind=behind)

    def _addressed(self, leg: Leg) -> Leg:
        if leg.addressed is None:
            return leg
        return msgspec.structs.replace(leg, body=leg.addressed(self._url))

    async def _said(self, word: asyncio.Future[Json], awaited: Awaited) -> Json:
        """Raises EngineTooSlow."""
        try:
            async with asyncio.timeout(self.seconds):
                return await asyncio.shield(word)
        except TimeoutError:
            raise EngineTooSlow(
                f"the engine did not call back within {self.seconds:g} s", at=awaited.by
            ) from None
