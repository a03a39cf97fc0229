"""Answer that is committed on prefill's first token, while decode has yet to begin (`--early-first-token`).

    prefill   answers "The"
    client    head, "The"    . . . waits . . .    " sky", finish, [DONE]
    decode    loads the KV                 head, "The", " sky", finish, [DONE]

What decode says is compared with what went out (first_token.py), so all that a client gets is decode's own answer, or
an error event. From prefill's token on no other attempt can be made: what fails then ends the stream.
Where decode begins before prefill has answered, or the token is of no use, decode's stream passes whole.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

from pdgate.forwarders.base import Answer, Merge, Sink
from pdgate.forwarders.beside import beside
from pdgate.forwarders.merged import Merged
from pdgate.forwarders.record import Deliver, Record
from pdgate.protocols.call import Headers, Json
from pdgate.protocols.errors import GatewayError

_EVENTS: Final = ((b"content-type", b"text/event-stream; charset=utf-8"),)


class Ahead:
    """The client's answer, and the sink of decode's."""

    def __init__(self, merge: Merge) -> None:
        self.status = 200
        self.headers: Headers = _EVENTS
        self._merge = merge
        self._early = b""
        self._answer: Answer | None = None
        self._client: Sink | None = None
        self._paused = False
        self._error: GatewayError | None = None
        self._begun = asyncio.Event()
        """Decode's answer has begun, or has failed."""
        self._taken = asyncio.Event()
        self._over = asyncio.Event()

    async def run(
        self,
        prefilling: asyncio.Future[Json],
        deliver: Deliver,
        record: Record,
        decode: Callable[[Deliver], Awaitable[None]],
    ) -> None:
        """Deliver prefill's token, and what `decode` relays behind it. Raises GatewayError."""

        async def relayed() -> None:
            try:
                await decode(self._relay)
            except GatewayError as error:
                self._fail(error)

        async def answered(decoding: asyncio.Task[None]) -> None:
            await self._either(prefilling)
            if not self._begun.is_set():
                self._early = self._merge.first(prefilling.result())
            if not self._early:
                await self._begun.wait()
                if self._error is not None:
                    raise self._error
            await deliver(self, record)
            await decoding

        await beside(relayed, answered)

    async def _either(self, prefilling: asyncio.Future[Json]) -> None:
        begun = asyncio.create_task(self._begun.wait())
        try:
            both: set[asyncio.Future[Any]] = {prefilling, begun}
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        finally:
            begun.cancel()

    async def _relay(self, answer: Answer, record: Record) -> None:
        """Decode's answer behind what went out: a Deliver. Raises GatewayError."""
        merged = self._answer = Merged(answer, self._merge, None)
        if not self._early:
            self.status, self.headers = merged.status, merged.headers
        self._begun.set()
        await self._taken.wait()
        if self._paused:
            merged.pause()
        merged.start(self)
        await self._over.wait()
        if self._error is not None:
            # Not to the client yet: execution notes first with what the leg ended.
            raise self._error

    def _fail(self, error: GatewayError) -> None:
        self._error = error
        self._begun.set()
        if self._client is not None:
            self._client.ended(error)

    # Answer, for the client's side.

    async def ready(self, beyond: int = 0) -> bytes:
        if self._answer is None or len(self._early) > beyond:
            return self._early
        return await self._answer.ready(beyond)

    def start(self, sink: Sink) -> None:
        self._client = sink
        if self._early:
            sink.data(self._early)
        if self._error is not None:
            sink.ended(self._error)
        self._taken.set()

    def pause(self) -> None:
        self._paused = True
        if self._answer is not None:
            self._answer.pause()

    def resume(self) -> None:
        self._paused = False
        if self._answer is not None:
            self._answer.resume()

    # Sink, of decode's answer.

    def data(self, chunk: bytes, framed: bytes = b"") -> None:
        assert self._client is not None
        self._client.data(chunk)

    def ended(self, error: GatewayError | None, last: bytes = b"") -> None:
        assert self._client is not None
        self._error = error
        if error is None:
            self._client.ended(None, last)
        elif last:
            self._client.data(last)
        self._over.set()


def at_once(reply: Json) -> asyncio.Future[Json]:
    """Prefill's answer that is there."""
    there: asyncio.Future[Json] = asyncio.get_running_loop().create_future()
    there.set_result(reply)
    return there
