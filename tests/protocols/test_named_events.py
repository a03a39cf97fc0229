"""What is read of streams whose events have names, without being fooled by their text."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdgate.protocols import named_events
from pdgate.protocols.apis import MESSAGES, RESPONSES
from pdgate.protocols.call import encode, parse_object
from pdgate.protocols.errors import EngineFailed, EngineGaveUp, EngineRejected

OPENED = b'event: response.created\ndata: {"type":"response.created"}\n\n'
STARTED = b'event: message_start\ndata: {"type":"message_start"}\n\n'
PING = b'event: ping\ndata: {"type":"ping"}\n\n'
FOOLING = '\nevent: error\ndata: {"error"\n\nevent: message_start\n\n{"status": "cancelled"}'


def delta(text: str) -> bytes:
    return (
        b"event: x.delta\ndata: "
        + json.dumps({"type": "x.delta", "delta": text}).encode()
        + b"\n\n"
    )


@pytest.mark.parametrize(
    ("first", "nothing"),
    [
        (b"", True),
        (OPENED[:30], True),
        (OPENED, True),
        (OPENED + OPENED.replace(b"created", b"in_progress"), True),
        (STARTED + PING, True),
        (b": keep-alive\n\n" + STARTED, True),
        (OPENED.replace(b"\n", b"\r\n"), True),
        (OPENED + delta("a")[:-1], True),
        (OPENED + delta("a"), False),
        (delta("a"), False),
    ],
)
def test_a_stream_that_is_only_open_says_nothing(first: bytes, nothing: bool) -> None:
    assert named_events.says_nothing_yet(first) is nothing


@given(st.text())
def test_no_text_looks_like_an_event(text: str) -> None:
    for said in (text, text + FOOLING):
        assert not named_events.says_nothing_yet(OPENED + delta(said))
        named_events.raise_stream_error(OPENED + delta(said), at="d0")
        answer = encode({"status": "completed", "stop_reason": "x", "text": said})
        named_events.raise_unless_whole(RESPONSES, answer, at="d0")
        named_events.raise_unless_whole(MESSAGES, answer, at="d0")


@pytest.mark.parametrize(
    ("name", "data", "raised"),
    [
        ("error", {"error": {"type": "invalid_request_error"}}, EngineRejected),
        ("error", {"error": {"type": "BadRequestError", "code": 404}}, EngineRejected),
        ("error", {"error": {"type": "internal_error", "message": "x"}}, EngineFailed),
        ("error", {"type": "error", "code": "server_error"}, EngineFailed),
        ("response.failed", {"response": {"error": {"code": "x"}}}, EngineFailed),
    ],
)
def test_an_error_tells_whose_fault_it_is(name: str, data: object, raised: type[Exception]) -> None:
    event = f"event: {name}\ndata: {json.dumps(data)}\n\n".encode()

    with pytest.raises(raised):
        named_events.raise_stream_error(STARTED + event, at="d0")


def test_a_broken_error_is_the_engines() -> None:
    with pytest.raises(EngineFailed):
        named_events.raise_stream_error(b"event: error\ndata: {\n\n", at="d0")


def test_an_engine_says_by_the_status_that_it_gave_a_response_up() -> None:
    inside = {"status": "completed", "output": [{"status": "cancelled"}]}
    gone = {"output": [], "status": "cancelled"}

    named_events.raise_unless_whole(RESPONSES, encode(inside), at="d0")
    with pytest.raises(EngineGaveUp):
        named_events.raise_unless_whole(RESPONSES, encode(gone), at="d0")
    assert named_events.reply_gave_up(parse_object(encode(gone)))
    assert not named_events.reply_gave_up(parse_object(encode(inside)))
    assert not named_events.reply_gave_up({})


def test_a_message_without_a_reason_to_end_was_given_up() -> None:
    for reason in ({}, {"stop_reason": None}):
        message = encode({"type": "message", "content": [], **reason})
        with pytest.raises(EngineGaveUp):
            named_events.raise_unless_whole(MESSAGES, message, at="d0")


@pytest.mark.parametrize("path", [MESSAGES, RESPONSES])
def test_half_an_answer_is_none(path: str) -> None:
    answer = encode({"status": "completed", "stop_reason": "end_turn", "content": []})
    for cut in range(len(answer)):
        with pytest.raises(EngineFailed):
            named_events.raise_unless_whole(path, answer[:cut], at="d0")
