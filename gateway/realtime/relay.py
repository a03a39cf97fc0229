"""Relay of a session: frames from one side to the other, each as far as it has come, and how it ends.

    client --receive--> counted, checked --send--> engine      two of these, and each waits for its reader:
    client <--send----- counted <------- receive-- engine      what is not read is not asked for

A message goes on in pieces and is never held, unless the names in it are checked (naming.py): then it is whole
first. How long one may be is bounded either way. Pings pass, and pongs; only where another server has the client's
connection (ASGI), which answers pings itself, the engine's are answered here.

Whatever ends a session first decides what goes to both sides; see `SessionEnding`.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final, Protocol

import msgspec
from wsproto.events import BytesMessage, CloseConnection, Event, Ping, Pong, TextMessage
from wsproto.frame_protocol import CloseReason

from pdgate.gateway import errors
from pdgate.gateway.realtime.endings import (
    GONE,
    SessionEnding,
    SessionEnds,
    SessionOutcome,
    client_left,
    engine_left,
    failed,
)
from pdgate.gateway.realtime.naming import ModelNames
from pdgate.gateway.tenants.session_tokens import SessionTokens
from pdgate.protocols.errors import GatewayError, TooLarge

TELLING_SECONDS: Final = 1.0
"""For a client to read why its session ends."""

GONE_SECONDS: Final = 1.0
"""For what a client has said that is gone: kernels hold MB of it."""

STALLED_SECONDS: Final = 60.0
"""For a side that reads nothing of what is written to it."""

MOST_EMPTY: Final = 1000
PIECE_BYTES: Final = 32 << 10
"""In which a message goes on that has been whole."""


class SessionSide(Protocol):
    """One end of a session.

    Attributes:
        passes_pings: Whether it hears pings, and answers them itself.
        broken: What it did that is no WebSocket; empty for nothing.
    """

    @property
    def passes_pings(self) -> bool: ...
    @property
    def broken(self) -> str: ...

    async def receive(self) -> Event: ...
    async def send(self, event: Event) -> None: ...
    async def close(self, code: int | None, reason: str) -> None: ...


class SessionRelay:
    """
    Attributes:
        last_frame: Loop time at which a frame came last, from either side.
    """

    def __init__(
        self,
        client: SessionSide,
        engine: SessionSide,
        names: ModelNames | None,
        most_bytes: int,
        counted: Callable[[str, int, bool], None],
        weigh: Callable[[int], None],
        at: str = "",
        tokens: SessionTokens | None = None,
    ) -> None:
        """`names`: checks what the client says; None where nothing is to be checked. `weigh`: told
        of changes of what is held. `counted`: told of pieces of messages: whose, bytes, whether it is the last one.
        `at`: the engine's id. `tokens`: counts them; None where there is no key."""
        self._client = client
        self._engine = engine
        self._names = names
        self._most_bytes = most_bytes
        self._weigh = weigh
        self._counted = counted
        self._at = at
        self._tokens = tokens
        self._loop = asyncio.get_running_loop()
        self.last_frame = self._loop.time()
        self._ended: asyncio.Future[SessionEnding] = self._loop.create_future()
        # Since when a side has been written to in vain; 0 for not at all.
        self._writing = [0.0, 0.0]
        self._in_message = False
        # Since when it has been gone; 0 for not at all.
        self._client_lost = 0.0

    def end(self, ending: SessionEnding) -> None:
        """What comes first decides."""
        if not self._ended.done():
            self._ended.set_result(ending)

    def client_is_lost(self) -> None:
        """Its connection is gone. What it said before still goes to the engine, for a moment."""
        if not self._client_lost:
            self._client_lost = self._loop.time()

    def look(self, now: float, idle_seconds: float | None) -> None:
        client_since, engine_since = self._writing
        if self._client_lost and now - self._client_lost >= GONE_SECONDS:
            self.end(GONE)
        elif client_since and now - client_since >= STALLED_SECONDS:
            self.end(
                SessionEnding(
                    SessionOutcome.STALLED, CloseReason.POLICY_VIOLATION, "nothing is read"
                )
            )
        elif engine_since and now - engine_since >= STALLED_SECONDS:
            self.end(failed("the engine reads nothing", self._at))
        elif idle_seconds is not None and now - self.last_frame >= idle_seconds:
            reason = f"nothing was said for {idle_seconds:g} s"
            self.end(SessionEnding(SessionOutcome.IDLE, CloseReason.GOING_AWAY, reason))

    async def run(self) -> SessionEnding:
        """Both ways, until the session ends; both sides have been told when it returns."""
        pumps = [
            self._loop.create_task(self._pump(self._client_to_engine)),
            self._loop.create_task(self._pump(self._engine_to_client)),
        ]
        try:
            ending = await self._ended
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.wait(pumps)
        await self._say_goodbye(ending)
        return ending

    async def _say_goodbye(self, ending: SessionEnding) -> None:
        if ending.error is not None and not self._in_message:
            with suppress(TimeoutError):
                async with asyncio.timeout(TELLING_SECONDS):
                    await self._client.send(TextMessage(data=_event(ending.error)))
        async with asyncio.TaskGroup() as group:
            # A reason of another outcome is for the client alone.
            said = ending.reason if ending.outcome is SessionOutcome.CLOSED else ""
            group.create_task(self._engine.close(ending.engine_code, said))
            group.create_task(self._client.close(ending.code, ending.reason))

    async def _pump(self, moving: Callable[[], Awaitable[None]]) -> None:
        try:
            await moving()
        except SessionEnds as ends:
            self.end(ends.ending)
        except Exception as caught:  # noqa: BLE001
            error = errors.known(caught)
            code = CloseReason.INTERNAL_ERROR
            self.end(SessionEnding(SessionOutcome.INTERNAL_ERROR, code, str(error), error=error))

    async def _client_to_engine(self) -> None:
        client, names = self._client, self._names
        length, empty, whole = 0, 0, bytearray()
        try:
            while True:
                event = await client.receive()
                self.last_frame = self._loop.time()
                if isinstance(event, CloseConnection):
                    raise SessionEnds(client_left(event, client.broken))
                if isinstance(event, TextMessage | BytesMessage):
                    piece = _bytes_of(event)
                    length = self._count("client", length, len(piece), event.message_finished)
                    if names is not None:
                        whole += piece
                        self._weigh(len(piece))
                        if event.message_finished:
                            await self._send_checked(names, bytes(whole), event)
                            self._weigh(-len(whole))
                            whole.clear()
                        continue
                    if not (piece or event.message_finished):
                        empty = self._one_more_empty(empty)
                        continue
                    empty = 0
                await self._send(1, self._engine, event)
        finally:
            self._weigh(-len(whole))

    async def _engine_to_client(self) -> None:
        client, engine, tokens = self._client, self._engine, self._tokens
        length = 0
        while True:
            event = await engine.receive()
            self.last_frame = self._loop.time()
            if isinstance(event, CloseConnection):
                raise SessionEnds(engine_left(event, engine.broken, self._at))
            if isinstance(event, Ping) and not client.passes_pings:
                await self._send(1, engine, Pong(payload=event.payload))
                continue
            if isinstance(event, TextMessage | BytesMessage):
                piece = _bytes_of(event)
                length = self._count("engine", length, len(piece), event.message_finished)
                if not (piece or event.message_finished):
                    continue
                self._in_message = not event.message_finished
                if tokens is not None:
                    tokens.hear(piece)
            await self._send(0, client, event)
            if (
                tokens is not None
                and isinstance(event, TextMessage | BytesMessage)
                and event.message_finished
            ):
                await _heard(tokens)

    def _one_more_empty(self, before: int) -> int:
        """Raises SessionEnds: pieces without a byte in a row, which only cost time."""
        if before >= MOST_EMPTY:
            code = CloseReason.POLICY_VIOLATION
            raise SessionEnds(
                SessionEnding(SessionOutcome.BAD_FRAME, code, "nothing but empty pieces")
            )
        return before + 1

    async def _send(self, which: int, side: SessionSide, event: Event) -> None:
        self._writing[which] = self._loop.time()
        await side.send(event)
        self._writing[which] = 0.0

    def _count(self, whose: str, before: int, more: int, finished: bool) -> int:
        """Bytes of the message so far. Raises SessionEnds."""
        self._counted(whose, more, finished)
        length = before + more
        if length > self._most_bytes:
            if whose == "engine":
                raise SessionEnds(failed("a message of the engine is too long", self._at))
            error = TooLarge(f"a message is longer than {self._most_bytes} bytes")
            raise SessionEnds(
                SessionEnding(
                    SessionOutcome.TOO_LARGE, CloseReason.MESSAGE_TOO_BIG, str(error), error=error
                )
            )
        return 0 if finished else length

    async def _send_checked(
        self, names: ModelNames, whole: bytes, like: TextMessage | BytesMessage
    ) -> None:
        """A whole message, in pieces. Raises SessionEnds."""
        try:
            checked = names.checked(whole)
        except GatewayError as error:
            code = CloseReason.POLICY_VIOLATION
            raise SessionEnds(
                SessionEnding(SessionOutcome.FORBIDDEN, code, str(error), error=error)
            ) from None
        said: str | bytes = checked.decode() if isinstance(like, TextMessage) else checked
        for at in range(0, max(len(said), 1), PIECE_BYTES):
            piece, last = said[at : at + PIECE_BYTES], at + PIECE_BYTES >= len(said)
            event: TextMessage | BytesMessage = (
                TextMessage(data=piece, message_finished=last)
                if isinstance(piece, str)
                else BytesMessage(data=piece, message_finished=last)
            )
            await self._send(1, self._engine, event)
            if not last:
                # Others have a turn: each piece is masked, in Python.
                await asyncio.sleep(0)


async def _heard(tokens: SessionTokens) -> None:
    """Raises SessionEnds."""
    try:
        await tokens.heard()
    except GatewayError as error:
        code = CloseReason.POLICY_VIOLATION
        raise SessionEnds(
            SessionEnding(SessionOutcome.OUT_OF_TOKENS, code, "no tokens are left", error=error)
        ) from None


def _bytes_of(event: TextMessage | BytesMessage) -> bytes | bytearray:
    return event.data.encode() if isinstance(event, TextMessage) else event.data


def _event(error: GatewayError) -> str:
    """As OpenAI's server events have it."""
    return msgspec.json.encode({"type": "error", **error.as_openai()}).decode()
