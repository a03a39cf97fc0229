"""The little that is read of answers is read without being fooled by their text."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdgate.protocols import openai, sse
from pdgate.protocols.call import COMPLETIONS, encode, parse_object
from pdgate.protocols.errors import EngineFailed, EngineGaveUp, EngineRejected
from tests.support.answers import error, opening, piece, usage, whole

ANNOYING = '"finish_reason": "abort" data: {"error": {"code": 400}}\n\ndata: {"error"'


@pytest.mark.parametrize(
    "answer",
    [
        piece("", "abort"),
        encode(whole("a", finish="abort")),
        json.dumps(whole("a", finish="abort"), indent=1).encode(),
        piece("a") + piece("", "abort"),
    ],
)
def test_an_abort_is_seen(answer: bytes) -> None:
    assert openai.aborted(answer)


@pytest.mark.parametrize("answer", [piece("", "stop"), piece("abort"), encode(whole(ANNOYING))])
def test_text_about_aborting_is_no_abort(answer: bytes) -> None:
    assert not openai.aborted(answer)


@given(st.text())
def test_no_text_looks_like_an_error(text: str) -> None:
    for said in (text, text + ANNOYING):
        openai.raise_stream_error(opening() + piece(said), at="d0")
        assert not openai.aborted(piece(said))


@pytest.mark.parametrize("before", [b"", opening(), piece("a")])
@pytest.mark.parametrize(
    ("event", "kind"),
    [
        (error(400), EngineRejected),
        (error(404), EngineRejected),
        (error(500), EngineFailed),
        (sse.event({"error": {"message": "no"}}), EngineFailed),
        (sse.event({"error": "no"}), EngineFailed),
        (sse.event({"object": "error", "message": "no", "code": 400}), EngineRejected),
        (b'data: {"error": {"code": 400}}\r\n\r\n', EngineRejected),
        (b'data:{ "error" : {"code": 400}}\n\n', EngineRejected),
        (b'data: {"error": {"code": 400\n\n', EngineFailed),
    ],
)
def test_an_error_event_is_raised_as_what_it_says(
    before: bytes, event: bytes, kind: type[Exception]
) -> None:
    with pytest.raises(kind) as caught:
        openai.raise_stream_error(before + event, at="d0")

    assert caught.value.at == "d0"  # type: ignore[attr-defined]


def test_a_rejection_is_handed_on_as_json() -> None:
    with pytest.raises(EngineRejected) as caught:
        openai.raise_stream_error(error(422) + sse.DONE, at="d0")

    assert caught.value.answer_status == 422
    assert json.loads(caught.value.body)["error"]["message"] == "no"
    assert list(caught.value.headers) == [(b"content-type", b"application/json")]


NULL_CONTENT = sse.event({"choices": [{"delta": {"role": "assistant", "content": None}}]})


@pytest.mark.parametrize(
    ("first", "expected"),
    [
        (b"", True),
        (piece("a")[:-1], True),
        (opening(), True),
        (NULL_CONTENT, True),
        (opening().replace(b"\n", b"\r\n"), True),
        (opening() + opening(), True),
        (opening() + piece("a")[:-1], True),
        (opening() + usage(0), True),
        (opening() + usage(0) + sse.DONE, True),
        (b": ping\n\n" + sse.DONE, True),
        (usage(0) + sse.DONE, True),
        (opening() + piece("a"), False),
        (opening() + piece(""), False),
        (opening() + piece("", "stop"), False),
        (piece("a"), False),
        (piece("", path=COMPLETIONS), False),
        (error(500), False),
        (sse.event({"choices": [{"delta": {"role": "assistant", "content": "a"}}]}), False),
        (sse.event({"choices": [{"delta": {"role": "assistant", "tool_calls": [{}]}}]}), False),
    ],
)
def test_a_stream_says_something_with_its_first_event_of_substance(
    first: bytes, expected: bool
) -> None:
    assert openai.says_nothing_yet(first) is expected


@pytest.mark.parametrize(
    "answer",
    [
        whole("a"),
        whole(""),
        whole("a", path=COMPLETIONS, finish="length"),
        whole('"finish_reason":"abort"'),
        whole("a", logprob=float("-inf")),
    ],
)
def test_an_answer_is_whole_if_it_says_why_it_ended(answer: dict[str, object]) -> None:
    openai.raise_unless_whole(json.dumps(answer).encode(), at="d0")


@pytest.mark.parametrize(
    ("answer", "raised"),
    [
        (json.dumps(whole("a", finish="abort")), EngineGaveUp),
        (json.dumps(whole("a", finish="error")), EngineGaveUp),
        (json.dumps({"choices": []}), EngineFailed),
        (json.dumps({"choices": None}), EngineFailed),
        (json.dumps({}), EngineFailed),
        (json.dumps([]), EngineFailed),
        (json.dumps({"choices": [{"index": 0, "text": "a", "finish_reason": None}]}), EngineFailed),
        ('{"choices": [{"finish_reason": "stop"}], "x": NaN', EngineFailed),
    ],
)
def test_an_answer_that_does_not_is_none(answer: str, raised: type[EngineFailed]) -> None:
    with pytest.raises(raised) as caught:
        openai.raise_unless_whole(answer.encode(), at="d0")

    assert (type(caught.value), caught.value.at) == (raised, "d0")


@given(st.integers(min_value=1))
def test_half_an_answer_is_none(cut: int) -> None:
    body = json.dumps(whole("a, b", id="\u00e9", usage={"completion_tokens": 2})).encode()

    with pytest.raises(EngineFailed):
        openai.raise_unless_whole(body[: cut % len(body)], at="d0")


@pytest.mark.parametrize(
    ("reply", "gave_up"),
    [
        ({"choices": [{"finish_reason": "abort"}]}, True),
        ({"choices": [{"text": "x", "finish_reason": "length"}]}, False),
        ({"choices": [{"text": '"finish_reason":"abort"', "finish_reason": "stop"}]}, False),
        ({"choices": []}, False),
        ({"choices": None}, False),
        ({}, False),
    ],
)
def test_a_whole_answer_says_that_the_engine_gave_up(
    reply: dict[str, object], gave_up: bool
) -> None:
    choices = bytes(parse_object(encode(reply)).get("choices", b""))

    assert openai.aborted(choices) is gave_up
