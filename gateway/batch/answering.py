"""One line of a batch through the service, as a call of the lowest urgency, until it has its answer.

The call is one like any other: admission, retries, records and the limits of its key are the service's.
What only says "not now" (no engine is up, too many calls, the key is used up) is asked again, for as long
as the batch has; a failure of engines a few times; what an engine says of the call is its answer.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from time import monotonic
from typing import Final, Self

from pdgate.forwarders.base import Answer
from pdgate.forwarders.record import Record
from pdgate.gateway import errors
from pdgate.gateway.admission.place import NAME as PRIORITY
from pdgate.gateway.batch.lines import BatchLine, BrokenLine, LineResult, answered, errored
from pdgate.gateway.request_headers import RequestHeaders
from pdgate.gateway.security.authenticator import KeyState
from pdgate.gateway.service import Service
from pdgate.gateway.upstream.contracts import AnswerMemory
from pdgate.protocols.apis import shape_of
from pdgate.protocols.errors import (
    CallAborted,
    CallBreaksEngines,
    CallsHeld,
    Draining,
    EngineBusy,
    EngineRejected,
    GatewayError,
    GatewayShort,
    NoInstance,
    NoMemoryForAnswer,
    NotServed,
    OutOfMemory,
    Overloaded,
    RateLimited,
    UnknownModel,
)
from pdgate.protocols.priority import LEAST_URGENT

NOT_NOW: Final = (
    RateLimited, Overloaded, OutOfMemory, Draining, NoInstance, EngineBusy, GatewayShort, CallsHeld,
    CallAborted,
)  # fmt: skip
TRIES: Final = 3
"""For what engines fail with, each of which is several attempts of the service."""
UNKNOWN_SECONDS: Final = 60.0
"""How long a model may be one that no engine has: those of a directory are listed one after the other."""
FIRST_PAUSE_SECONDS: Final = 0.1
LONGEST_PAUSE_SECONDS: Final = 10.0
MOST_END_BYTES: Final = 64 << 10
"""Of an answer, as records keep its end."""
MOST_ANSWER_BYTES: Final = 64 << 20
ROOM_BYTES: Final = 256 << 10
"""For an answer, taken at once."""

HEADERS: Final = RequestHeaders(
    [(b"content-type", b"application/json"), (PRIORITY.encode(), b"%d" % LEAST_URGENT)]
)

Sleep = Callable[[float], Awaitable[None]]


class AnswerTooLong(GatewayError):
    """An answer that cannot be a line of a file; engines would give the same again."""

    status, code = 502, "answer_too_long"


@dataclass(frozen=True, slots=True)
class Caller:
    """Sends the lines of one batch.

    Attributes:
        memory: For answers, as of all that the gateway holds.
        key: Returns the state of the key that the batch belongs to; None where no keys are asked for.
            Raises LookupError where that key is no more, RateLimited for one of too many tenants.
    """

    service: Service
    memory: AnswerMemory
    endpoint: str
    key: Callable[[], KeyState | None]
    sleep: Sleep = asyncio.sleep

    async def result(self, line: BatchLine) -> LineResult:
        """Return what came of the line, however long that takes."""
        began, pause, failures = monotonic(), FIRST_PAUSE_SECONDS, 0
        while True:
            with WholeAnswer(self.memory) as client:
                try:
                    key = self.key()
                except LookupError:
                    said = "the API key that the batch belongs to is no more"
                    return errored(BrokenLine(line.number, line.custom_id, "invalid_api_key", said))
                except RateLimited as refused:
                    client.error = refused
                else:
                    await self.service.handle(self.endpoint, HEADERS, line.body, client, key)
                error = client.error
                if error is None:
                    return answered(line, client.status, client.call_id, bytes(client.body))
            failures += not is_for_later(error)
            seconds = monotonic() - began
            if not is_asked_again(error, failures, seconds):
                status, _, body = errors.as_response(error, shape=shape_of(self.endpoint))
                return answered(line, status, client.call_id, body)
            await self.sleep(max(pause, min(error.retry_after_seconds or 0, LONGEST_PAUSE_SECONDS)))
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)


def is_for_later(error: GatewayError) -> bool:
    """Whether it says nothing of the call, but of this moment."""
    if isinstance(error, EngineRejected):
        return error.answer_status in (429, 503)
    return isinstance(error, NOT_NOW)


def is_asked_again(error: GatewayError, failures: int, seconds: float) -> bool:
    """`failures`: with this one, not counting those that are for later; `seconds`: since the first try."""
    if is_for_later(error):
        return True
    if isinstance(error, UnknownModel):
        return seconds < UNKNOWN_SECONDS
    final = EngineRejected | CallBreaksEngines | NotServed | AnswerTooLong
    if isinstance(error, final) or error.status < 500:
        return False
    return failures < TRIES


class WholeAnswer:
    """Client of one call that keeps its answer, within a block; nothing is committed before all of it is
    here, so that a failure in the middle is tried elsewhere."""

    def __init__(self, memory: AnswerMemory) -> None:
        self.status = 0
        self.call_id = ""
        self.body = bytearray()
        self.error: GatewayError | None = None
        self._memory = memory
        self._room_bytes = 0
        self._over: asyncio.Future[GatewayError | None] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._memory.give_back(self._room_bytes)

    async def deliver(self, answer: Answer, record: Record) -> None:
        self.body.clear()
        self.status, self.call_id = answer.status, record.call.id
        self._over = asyncio.get_running_loop().create_future()
        answer.start(self)
        error = await self._over
        if error is not None:
            raise error
        record.committed = record.clock()
        if len(self.body) <= MOST_END_BYTES:
            record.end_of_answer = bytes(self.body)

    def data(self, chunk: bytes, framed: bytes = b"") -> None:
        if self._over is None or self._over.done():
            return
        size = len(self.body) + len(chunk)
        if size > MOST_ANSWER_BYTES:
            self._ends(AnswerTooLong(f"the answer is longer than {MOST_ANSWER_BYTES} bytes"))
        elif size > self._room_bytes and not self._has_room(size):
            self._ends(NoMemoryForAnswer("the gateway holds as many answers as it has memory for"))
        else:
            self.body += chunk

    def ended(self, error: GatewayError | None, last: bytes = b"") -> None:
        if last:
            self.data(last)
        self._ends(error)

    async def refuse(self, error: GatewayError, call_id: str) -> None:
        self.error, self.call_id = error, call_id

    async def break_off(self, error: GatewayError) -> None:
        self.error = error

    def _ends(self, error: GatewayError | None) -> None:
        if self._over is not None and not self._over.done():
            self._over.set_result(error)

    def _has_room(self, size: int) -> bool:
        more = max(size - self._room_bytes, ROOM_BYTES)
        if not self._memory.take(more):
            return False
        self._room_bytes += more
        return True
