"""Gathering of a stream's events into the one answer that the client of a call without a stream waits for.

    client     {"messages": [...]}                                 one JSON object
    engines    {"messages": [...], "stream": true, ...usage}       events, of as many engines as it takes

An engine says nothing of an answer that is no stream before it is whole, so what it has made would be lost if it ended
before. Asked for a stream it says each token, and another one can go on (resume.py).

All fields of the first event, and those of the choice that has the finish reason, are in the answer; what only parsers of
an engine would add to a message (null for nothing said) is not.
"""

import asyncio
from typing import Any, Final, Protocol

import msgspec

from pdgate.forwarders.base import Answer, Sink
from pdgate.forwarders.record import Deliver, Record
from pdgate.forwarders.resuming.eligible import WANTED
from pdgate.protocols import sse
from pdgate.protocols.call import CHAT, Call, Headers, Raw
from pdgate.protocols.chunks import is_costly
from pdgate.protocols.errors import EngineFailed, GatewayError, NoMemoryForAnswer

MOST_CHARACTERS: Final = 2 << 20
"""Of an answer."""
EACH_BYTES: Final = 4
"""A character at most, as long as its text is in pieces."""
ROOM_BYTES: Final = 64 << 10

_NOT_GATHERED: Final = {
    "logprobs": "log-probabilities of an answer that is no stream",
    "stream_options": "options of a stream, and no stream",
    WANTED: "token ids of an answer that is no stream",
}


def why_not_gathered(call: Call) -> str:
    """What keeps an answer that could be resumed from being made of a stream; "" if nothing does."""
    for name, why in _NOT_GATHERED.items():
        said = call.value(name)
        if said is not None and said is not False:
            return why
    return ""


def as_stream(call: Call) -> Call:
    """The same call, whose answer comes in events, with its usage."""
    body = {
        **call.body,
        "stream": Raw(b"true"),
        "stream_options": Raw(b'{"include_usage":true}'),
    }
    return msgspec.structs.replace(call, body=body, streams=True)


class GatheringRoom(Protocol):
    """Memory for answers that are held, as of all that the gateway holds."""

    def take(self, size: int, /) -> bool:
        """Whether so many bytes more may be held."""

    def give_back(self, size: int, /) -> None: ...


class Gathering:
    """Sink of the events.

    Attributes:
        begun: There is something of the answer.
    """

    def __init__(self, call: Call, deliver: Deliver, room: GatheringRoom | None = None) -> None:
        self._room = room
        self._room_bytes = 0
        self._chat = call.path == CHAT
        self._deliver = deliver
        self._over: asyncio.Future[GatewayError | None] | None = None
        self.forget()

    def forget(self) -> None:
        """Begin anew, with nothing gathered."""
        self.begun = False
        self._splitter = sse.Splitter()
        self._head: dict[str, Any] = {}
        self._message: dict[str, Any] = {"role": "assistant", "content": ""}
        self._said: dict[str, list[str]] = {}
        self._characters = 0
        self._finish: dict[str, Any] = {"index": 0, "finish_reason": None}
        self._usage: Any = None

    async def deliver(self, answer: Answer, record: Record) -> None:
        """A Deliver: of a whole stream, or of the rest of one."""
        if not self.begun:
            self.forget()
        self._splitter = sse.Splitter()
        over = self._over = asyncio.get_running_loop().create_future()
        answer.start(self)
        error = await over
        if error is not None:
            raise error
        body = msgspec.json.encode(self._whole())
        if self._usage is not None:
            record.usage_said = Raw(msgspec.json.encode(self._usage))
        await self._deliver(_GatheredAnswer(body), record)

    def data(self, chunk: bytes, framed: bytes = b"") -> None:
        if self._over is None or self._over.done():
            return
        try:
            for event in self._splitter.feed(chunk):
                self._take(sse.payload(event))
        except (ValueError, LookupError, TypeError, AttributeError):
            self._end(EngineFailed("the engine's stream cannot be read"))
        if self._characters > MOST_CHARACTERS:
            self._end(EngineFailed("the engine sent too large an answer"))
        elif self._characters * EACH_BYTES > self._room_bytes and not self._has_room():
            self._end(NoMemoryForAnswer("the gateway holds as many answers as it has memory for"))

    def ended(self, error: GatewayError | None, last: bytes = b"") -> None:
        if last:
            self.data(last)
        self._end(error)

    def close(self) -> None:
        """What was held is not any more."""
        if self._room is not None:
            self._room.give_back(self._room_bytes)
        self._room_bytes = 0

    def _has_room(self) -> bool:
        if self._room is not None:
            if not self._room.take(ROOM_BYTES):
                return False
            self._room_bytes += ROOM_BYTES
        return True

    def _take(self, data: bytes) -> None:
        if not data or data == b"[DONE]":
            return
        if is_costly(data):
            raise ValueError("an event too long to be read")
        chunk = msgspec.json.decode(data, type=dict[str, Any])
        self.begun = True
        if not self._head:
            self._head = {name: said for name, said in chunk.items() if name not in _OF_EVENTS}
        self._usage = chunk.get("usage") or self._usage
        for choice in chunk.get("choices") or ():
            if choice.get("index"):
                raise ValueError("several choices")
            delta = choice.get("delta") or {} if self._chat else {"text": choice.get("text")}
            for name, said in delta.items():
                if name == "role" or not isinstance(said, str):
                    self._message[name] = said or self._message.get(name)
                else:
                    self._said.setdefault(name, []).append(said)
                    self._characters += len(said)
            if choice.get("finish_reason"):
                self._finish = {
                    name: said for name, said in choice.items() if name not in _OF_CHOICES
                }

    def _whole(self) -> dict[str, Any]:
        said: dict[str, Any] = {name: "".join(pieces) for name, pieces in self._said.items()}
        said = {"message": {**self._message, **said}} if self._chat else {"text": "", **said}
        choice = {"index": 0, **said, "logprobs": None, **self._finish}
        kind = "chat.completion" if self._chat else "text_completion"
        whole = {**self._head, "object": kind, "choices": [choice]}
        return whole if self._usage is None else {**whole, "usage": self._usage}

    def _end(self, error: GatewayError | None) -> None:
        if self._over is not None and not self._over.done():
            self._over.set_result(error)


_OF_EVENTS: Final = frozenset({"choices", "object", "prompt_token_ids", "usage"})
_OF_CHOICES: Final = frozenset({"delta", "prompt_token_ids", "text", "token_ids"})


class _GatheredAnswer:
    """An answer that is all there."""

    def __init__(self, body: bytes) -> None:
        self.status = 200
        length = str(len(body)).encode()
        self.headers: Headers = [
            (b"content-type", b"application/json"),
            (b"content-length", length),
        ]
        self._body = body

    async def ready(self, beyond: int = 0) -> bytes:
        return self._body

    def start(self, sink: Sink) -> None:
        sink.data(self._body)
        sink.ended(None)

    def pause(self) -> None:
        """All of it has gone out."""

    def resume(self) -> None:
        """The same."""
