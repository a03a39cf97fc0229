"""One answer, put together of the events of a stream."""

import json
from typing import Any

import pytest

from pdgate.forwarders.record import Record
from pdgate.forwarders.resuming.gathered import (
    ROOM_BYTES,
    Gathering,
    GatheringRoom,
    as_stream,
    why_not_gathered,
)
from pdgate.protocols import sse
from pdgate.protocols.call import COMPLETIONS, Call, Headers, encode
from pdgate.protocols.errors import EngineFailed, GatewayError, NoMemoryForAnswer
from tests.support.scripted import Told, call_of


class Events:
    """An answer that says these at once."""

    status: int = 200
    headers: Headers = ((b"content-type", b"text/event-stream"),)

    def __init__(self, *events: object, error: GatewayError | None = None) -> None:
        self._said = b"".join(map(sse.event, events))
        self._error = error

    async def ready(self, beyond: int = 0) -> bytes:
        return self._said

    def start(self, sink: Any) -> None:
        sink.data(self._said[:30])
        sink.data(self._said[30:])
        sink.ended(self._error, sse.DONE if self._error is None else b"")

    def pause(self) -> None: ...

    def resume(self) -> None: ...


class Room:
    def __init__(self, most: int) -> None:
        self.left = most

    def take(self, size: int, /) -> bool:
        self.left -= size
        return self.left >= 0

    def give_back(self, size: int, /) -> None:
        self.left += size


def event(index: int = 0, finish: str | None = None, **delta: object) -> dict[str, Any]:
    choice = {"index": index, "delta": delta, "finish_reason": finish, "stop_reason": None}
    return {"id": "one", "object": "chat.completion.chunk", "model": "m", "choices": [choice]}


USAGE = {"id": "one", "choices": [], "usage": {"prompt_tokens": 2, "completion_tokens": 3}}


def asked(**fields: object) -> Call:
    return call_of(encode({"model": "m", "messages": [], **fields}))


async def gathered(*events: object, room: GatheringRoom | None = None) -> dict[str, Any]:
    call = asked()
    record = Record(call)
    told = Told(record)
    gathering = Gathering(call, told.take, room)
    try:
        await gathering.deliver(Events(*events), record)
    finally:
        gathering.close()
    found: dict[str, Any] = json.loads(told.body)
    assert record.usage_said is None or "usage" in found
    return found


async def test_what_a_message_says_beside_its_content_is_there_too() -> None:
    one = await gathered(
        event(role="assistant", content=""),
        event(reasoning_content="so"),
        event(reasoning_content="me", refusal=None),
        event(content="a"),
        event(content="b", finish="stop"),
        USAGE,
    )

    assert one["choices"] == [
        {
            "index": 0,
            "message": {
                "role": "assistant",
                "content": "ab",
                "reasoning_content": "some",
                "refusal": None,
            },
            "logprobs": None,
            "finish_reason": "stop",
            "stop_reason": None,
        }
    ]
    assert (one["id"], one["object"], one["usage"]) == ("one", "chat.completion", USAGE["usage"])


async def test_an_answer_goes_on_where_it_broke_off() -> None:
    call = asked()
    record = Record(call)
    told = Told(record)
    gathering = Gathering(call, told.take)
    assert not gathering.begun
    broken = EngineFailed("gone", at="d0")
    with pytest.raises(EngineFailed):
        await gathering.deliver(Events(event(content="a"), error=broken), record)
    assert gathering.begun
    assert record.committed is None

    await gathering.deliver(Events(event(content="b", finish="stop")), record)

    assert json.loads(told.body)["choices"][0]["message"]["content"] == "ab"


async def test_a_second_choice_is_an_error_and_not_a_mixture() -> None:
    with pytest.raises(EngineFailed):
        await gathered(event(content="a"), event(1, content="b"))


async def test_answers_count_as_what_the_gateway_holds() -> None:
    room, none = Room(2 * ROOM_BYTES), Room(0)

    await gathered(event(content="x" * 20_000), event(finish="stop"), room=room)
    assert room.left == 2 * ROOM_BYTES
    with pytest.raises(NoMemoryForAnswer):
        await gathered(event(content="x"), room=none)


def test_what_a_stream_does_not_say_in_the_same_way_is_not_asked_as_one() -> None:
    assert why_not_gathered(asked(logprobs=True))
    assert why_not_gathered(asked(return_token_ids=True))
    assert why_not_gathered(asked(stream_options={}))
    many = call_of(encode({"model": "m", "prompt": ["a", "b"], "logprobs": 0}), COMPLETIONS)
    assert why_not_gathered(many)
    assert not why_not_gathered(asked(logprobs=False, max_tokens=3))
    streamed = as_stream(asked())
    assert streamed.streams
    assert bytes(streamed.body["stream"]) == b"true"
