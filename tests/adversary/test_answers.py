"""Bytes of engines: an answer that is cut, at whatever byte and in whatever way, is none that is whole.

Every stream here is one that an engine sends; it is cut at each of its bytes, as HTTP cuts it and
as HTTP does not notice, and comes in reads of several sizes.
"""

import asyncio
import gzip
import itertools
import json
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import pytest

from pdgate.forwarders.base import Leg
from pdgate.forwarders.first_event import HELD_BYTES, WHOLE_BYTES, good_start, good_whole
from pdgate.gateway.intake import Intake
from pdgate.gateway.request_headers import RequestHeaders
from pdgate.protocols import sse
from pdgate.protocols.apis import APIS, GENERATE, MESSAGES, NATIVE, RESPONSES
from pdgate.protocols.call import CHAT, COMPLETIONS, Call, encode, parse_object
from pdgate.protocols.chunks import LARGE_BYTES
from pdgate.protocols.endings import (
    MOST_COMMAS,
    MOST_PROMPTS_BYTES,
    choices_of,
    ending_of,
    outputs_of,
)
from pdgate.protocols.errors import EngineFailed, EngineGaveUp, EngineRejected, GatewayError
from pdgate.protocols.internal import without_ours
from tests.support.answers import error, opening, piece, usage, whole
from tests.support.raw_server import chunk
from tests.support.wire import LEG, Case

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
CHUNKED = HEAD + b"transfer-encoding: chunked\r\n\r\n"
UNTIL_THE_END = b"HTTP/1.0 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"
JSON_HEAD = b"HTTP/1.0 200 OK\r\ncontent-type: application/json\r\n\r\n"
PARAMS = {"remote_block_ids": [[1, 2]], "remote_host": "10.0.0.9", "remote_port": 5600}


def call(path: str, **fields: Any) -> Call:
    body = parse_object(encode({"stream": True, **fields}))
    return Call("c", "c-1", path, body, streams=True, api=APIS.get(path))


def choice(index: int, finish: str | None = None) -> bytes:
    said = {"index": index, "text": "x", "finish_reason": finish}
    return sse.event({"id": "x", "choices": [said]})


def bare(text: str, finish: str | None = None) -> bytes:
    """Of engines that name a reason in the last event only; all events end alike."""
    first = {} if finish is None else {"finish_reason": finish}
    return sse.event({"choices": [{**first, "index": 0, "delta": {"content": text}}]})


def named(name: str, **fields: Any) -> bytes:
    return b"event: %b\n" % name.encode() + sse.event({"type": name, **fields})


def response(status: str, tokens: int = 2) -> dict[str, Any]:
    return {"id": "r", "status": status, "output": [], "usage": {"output_tokens": tokens}}


def ended(reason: str | None, tokens: int = 2) -> bytes:
    return named("message_delta", delta={"stop_reason": reason}, usage={"output_tokens": tokens})


STARTED = named("message_start", message={"content": [], "stop_reason": None})
BLOCK = named("content_block_start", index=0, content_block={"type": "text", "text": ""})
TEXT = named("content_block_delta", index=0, delta={"type": "text_delta", "text": "a"})
STOP = named("message_stop")
CREATED = named("response.created", response=response("in_progress", 0))
DELTA = named("response.output_text.delta", delta="a")

STREAMS: dict[str, tuple[Call, Sequence[bytes], int]] = {
    # The call, its events, and after how many of them the answer is whole.
    "chat": (call(CHAT), (opening(), piece("a"), piece("b"), piece("", "stop"), sse.DONE), 4),
    "chat with usage": (
        call(CHAT),
        (opening(), piece("a"), piece("", "length"), usage(), sse.DONE),
        3,
    ),
    "chat of no token": (call(CHAT), (opening(), piece("", "stop"), sse.DONE), 2),
    "chat with one reason": (
        call(CHAT),
        (bare("a"), bare("b"), bare("c"), bare("d", "stop"), sse.DONE),
        4,
    ),
    "chat in crlf": (
        call(CHAT),
        tuple(e.replace(b"\n", b"\r\n") for e in (opening(), piece("a"), piece("", "stop"))),
        3,
    ),
    "completions": (
        call(COMPLETIONS),
        (choice(0), b": ping\n\n", choice(0), choice(0, "length"), sse.DONE),
        4,
    ),
    "two choices": (
        call(COMPLETIONS, n=2),
        (choice(0), choice(1), choice(0, "stop"), choice(1), choice(1, "stop"), sse.DONE),
        5,
    ),
    "two prompts": (
        call(COMPLETIONS, prompt=["a", "b"]),
        (choice(0), choice(0, "stop"), choice(1), choice(1, "stop"), sse.DONE),
        4,
    ),
    "messages": (call(MESSAGES), (STARTED, BLOCK, TEXT, ended("end_turn"), STOP), 5),
    "responses": (
        call(RESPONSES),
        (CREATED, DELTA, named("response.completed", response=response("completed"))),
        3,
    ),
    "a response that was cut by its limit": (
        call(RESPONSES),
        (CREATED, DELTA, named("response.incomplete", response=response("incomplete"))),
        3,
    ),
}


def read_in(data: bytes, size: int) -> Iterator[bytes]:
    for start in range(0, len(data), size):
        yield data[start : start + size]


def answered(case: Case, data: bytes, size: int) -> tuple[bytes, GatewayError | None]:
    """What goes to the client, and what it ends with."""
    case.exchange.start(case.result)
    for read in read_in(data, size):
        if not case.wire.closing and not case.wire.given_back:
            case.connection.data_received(read)
    if not case.wire.closing and not case.wire.given_back:
        case.eof()
    assert len(case.result.ends) == 1
    return case.result.body, case.result.ends[0]


@pytest.mark.parametrize("size", [1, 7, 1 << 16])
@pytest.mark.parametrize("name", STREAMS)
def test_a_stream_that_is_cut_at_any_byte_is_not_whole(name: str, size: int) -> None:
    asked, events, needed = STREAMS[name]
    stream = b"".join(events)
    whole_from = len(b"".join(events[:needed]))
    loop = asyncio.new_event_loop()
    for cut in range(len(stream) + 1):
        part = stream[:cut]
        for sent in (CHUNKED + chunk(part) * bool(part) + b"0\r\n\r\n", UNTIL_THE_END + part):
            got, wrong = answered(Case(loop, answers=asked), sent, size)

            assert stream.startswith(got)
            if wrong is None:
                # It has all, and what it has ends with an event, but for a line end.
                assert len(got) >= whole_from
                assert got == part
            else:
                assert b"[DONE]" not in got
                assert got == b"" or got.endswith((b"\n\n", b"\n\r\n"))
        broken = CHUNKED + (chunk(part)[:-2] if part else b"")
        got, wrong = answered(Case(loop, answers=asked), broken, size)
        assert wrong is not None or got == stream
    loop.close()


def end_event_by_event(
    asked: Call, events: Sequence[bytes], head: bytes = CHUNKED
) -> GatewayError | None:
    """What it ends with if each event is a read of its own."""
    loop = asyncio.new_event_loop()
    case = Case(loop, answers=asked)
    case.exchange.start(case.result)
    for read in (head, *map(chunk, events), b"0\r\n\r\n"):
        if not case.wire.closing and not case.wire.given_back:
            case.connection.data_received(read)
    loop.close()
    return case.result.ends[0]


@pytest.mark.parametrize("n", [2, 2.0, "2", " 2 "], ids=repr)
def test_a_stream_that_lacks_a_choice_is_not_whole(n: object) -> None:
    """However the number of choices is spelled: engines read what is no number as one."""
    asked = call(COMPLETIONS, n=n)
    events = [choice(0), choice(1), choice(0), choice(1), choice(0, "stop"), sse.DONE]

    assert isinstance(end_event_by_event(asked, events), EngineFailed)
    assert end_event_by_event(asked, [*events[:-1], choice(1, "stop"), sse.DONE]) is None


@pytest.mark.parametrize(
    ("path", "prompts", "several"),
    [
        (COMPLETIONS, {"prompt_embeds": ["QUJD", "QUJE"]}, 2),
        (COMPLETIONS, {"prompt_embeds": "QUJD", "prompt": "a"}, 2),
        (COMPLETIONS, {"prompt_embeds": ["QUJD"], "prompt": [[1], [2]]}, 3),
        (COMPLETIONS, {"prompt_embeds": ["QUJD", "QUJE"], "prompt": [1, 2], "n": 2}, 6),
        (COMPLETIONS, {"prompt_embeds": "QUJD"}, 1),
        (COMPLETIONS, {"prompt_embeds": "QUJD", "prompt": []}, 1),
        (COMPLETIONS, {"prompt_embeds": "QUJD", "prompt": None}, 1),
        (COMPLETIONS, {"prompt_embeds": [], "prompt": "a"}, 1),
        (COMPLETIONS, {"prompt_embeds": None, "prompt": ["a", "b"]}, 2),
        (NATIVE, {"input_embeds": [[[0.5, 1], [2, 3]], [[4, 5]]]}, 2),
        (NATIVE, {"input_embeds": [[0.5, 1], [2, 3]]}, 1),
    ],
)
def test_prompts_that_are_embeddings_are_counted(
    path: str, prompts: dict[str, Any], several: int
) -> None:
    """A stream passed as whole whose second prompt was never answered."""
    asked = call(path, **prompts)

    assert (outputs_of if path == NATIVE else choices_of)(asked) == several


def test_a_stream_that_lacks_the_answer_to_an_embedding_is_not_whole() -> None:
    asked = call(COMPLETIONS, prompt="a", prompt_embeds="QUJD")
    events = [choice(0), choice(0, "stop"), sse.DONE]

    assert isinstance(end_event_by_event(asked, events), EngineFailed)
    assert end_event_by_event(asked, [*events[:-1], choice(1, "stop"), sse.DONE]) is None


def sglang(text: str | None, finish: str | None = None, **fields: Any) -> bytes:
    """As SGLang writes a chat: of hidden states it tells behind the chunk that has the reason."""
    delta = {"content": text} if text is not None else {"hidden_states": [0.5, 0.25]}
    said = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
    return sse.event(
        {
            "id": "0123456789abcdef0123456789abcdef",
            "object": "chat.completion.chunk",
            "created": 1795000000,
            "model": "m",
            "choices": [{**said, "matched_stop": None}],
            "usage": None,
            **fields,
        }
    )


def read_together(asked: Call, *reads: Sequence[bytes]) -> tuple[bytes, list[object]]:
    """What a client gets of these events, and with what its answer ends; the chunks of a read come in it together."""
    loop = asyncio.new_event_loop()
    case = Case(loop, answers=asked)
    case.connection.data_received(CHUNKED)
    case.exchange.start(case.result)
    for events in reads:
        case.connection.data_received(b"".join(map(chunk, events)))
    case.connection.data_received(b"0\r\n\r\n")
    loop.close()
    return case.result.body, [type(error) for error in case.result.ends]


FINISH = sglang("", "stop")
KEPT: dict[str, Any] = {"kv_transfer_params": {"remote_host": "10.0.0.1"}}


@pytest.mark.parametrize("text", ["a", "a" * 400])
@pytest.mark.parametrize("before", [0, 1, 3])
def test_a_reason_is_seen_wherever_it_stands_in_a_read(text: str, before: int) -> None:
    """The last event of a read was taken for all of it, so that a good answer was called given up."""
    opens, more, hidden = sglang(""), sglang(text), sglang(None)
    together = [*[more] * before, FINISH, hidden]

    got = read_together(call(CHAT), [opens], [more], together, [sse.DONE])

    assert got == (b"".join([opens, more, *together, sse.DONE]), [type(None)])


def test_a_reason_is_seen_in_one_chunk_with_a_later_event() -> None:
    """As proxies write what has come."""
    opens, hidden = sglang(""), sglang(None)

    got = read_together(call(CHAT), [opens], [FINISH + hidden], [sse.DONE])

    assert got == (opens + FINISH + hidden + sse.DONE, [type(None)])


def test_what_is_ours_does_not_pass_in_front_of_a_later_event() -> None:
    opens, hidden = sglang(""), sglang(None)

    body, ends = read_together(
        call(CHAT), [opens], [sglang("", "stop", **KEPT), hidden], [sse.DONE]
    )

    assert b"10.0.0.1" not in body
    assert body == opens + FINISH + hidden + sse.DONE
    assert ends == [type(None)]


def test_what_is_ours_does_not_pass_in_an_event_that_ends_like_the_one_before() -> None:
    body, ends = read_together(
        call(CHAT), [sglang("", **KEPT)], [sglang("a", **KEPT)], [FINISH], [sse.DONE]
    )

    assert body == sglang("") + sglang("a") + FINISH + sse.DONE
    assert ends == [type(None)]


def test_an_abort_in_front_of_a_later_event_is_seen() -> None:
    opens, more = sglang(""), sglang("a")

    body, ends = read_together(call(CHAT), [opens], [more, sglang("", "abort"), more], [sse.DONE])

    assert body == opens + more
    assert ends == [EngineGaveUp]


@pytest.mark.parametrize("text", ["a", "a" * 400, '"finish_reason":null}]}\n\n'])
def test_events_of_text_alone_are_passed_on_together(text: str) -> None:
    """Unread, as each ends like those before: they come so when there is much to do."""
    opens, more = sglang(""), sglang(text)
    ending = ending_of(call(CHAT))

    assert ending.feed(opens) == opens
    burst = more * 5
    assert ending.feed(burst) is burst


YES: Sequence[object] = (True, 1, 1.0, "true", "Yes", "on")
NO: Sequence[object] = (False, None, 0, 2, "", "false", "no", "x", [], {}, [True])


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, MESSAGES, RESPONSES])
@pytest.mark.parametrize("said", [*YES, *NO], ids=repr)
def test_what_an_engine_takes_for_a_stream_is_one(path: str, said: object) -> None:
    """Its events were taken for a broken answer, which counted against each engine that gave it."""
    body = encode({"model": "m", "stream": said})

    found = Intake(1 << 20).call(path, RequestHeaders([]), body, "call-1")

    assert found.streams is any(said is one for one in YES)
    assert bytes(found.body["stream"]) == encode(said)


TYPES = {
    "another spelling": b"content-type: Text/Event-Stream; charset=utf-8\r\n",
    "another type": b"content-type: text/plain\r\n",
    "JSON": b"content-type: application/json\r\n",
    "no type": b"",
}


@pytest.mark.parametrize("kind", TYPES.values(), ids=TYPES.keys())
def test_a_stream_of_any_content_type_has_to_end(kind: bytes) -> None:
    head = b"HTTP/1.1 200 OK\r\n%btransfer-encoding: chunked\r\n\r\n" % kind
    events = [opening(), piece("a"), piece("b")]

    assert isinstance(end_event_by_event(call(CHAT), events, head), EngineFailed)
    assert end_event_by_event(call(CHAT), [*events, piece("", "stop"), sse.DONE], head) is None


@pytest.mark.parametrize("said", [b'{"choices": [{"mess', b'{"choices": []}', b"{}", b"Hello"])
def test_what_is_no_stream_is_no_answer_to_a_call_that_streams(said: bytes) -> None:
    """A client that reads events would see an answer of none."""
    loop = asyncio.new_event_loop()
    length = b"content-length: %d\r\n\r\n" % len(said)
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
    for sent in (head + length + said, head + b"\r\n" + said):
        got, wrong = answered(Case(loop, answers=call(CHAT)), sent, 1 << 16)
        assert (got, type(wrong)) == (b"", EngineFailed)
    loop.close()


ABORTED = {
    "with empty reasons": (call(CHAT), [opening(), piece("a", ""), piece("b", ""), sse.DONE]),
    "completions": (call(COMPLETIONS), [sse.DONE]),
    "completions with usage": (call(COMPLETIONS), [usage(0), sse.DONE]),
    "chat": (call(CHAT), [opening(), sse.DONE]),
    "chat with usage": (call(CHAT), [opening(), usage(0), sse.DONE]),
    "chat of two": (call(CHAT, n=2), [opening(), opening(), piece("a", "stop"), sse.DONE]),
    "one of two choices": (call(COMPLETIONS, n=2), [choice(0), choice(0, "stop"), sse.DONE]),
    "with a chunk": (call(CHAT), [opening(), piece("a"), piece("", "abort"), sse.DONE]),
    "with another chunk": (call(CHAT), [opening(), piece("a"), piece("", "error"), sse.DONE]),
    "without any reason": (call(CHAT), [bare("a"), bare("b"), bare("c"), sse.DONE]),
    "with one reason": (call(CHAT), [bare("a"), bare("b"), bare("c", "abort"), sse.DONE]),
    "messages": (call(MESSAGES), [STARTED, ended("end_turn", 0), STOP]),
    "messages without a reason": (call(MESSAGES), [STARTED, BLOCK, TEXT, ended(None), STOP]),
    "messages that end": (call(MESSAGES), [STARTED, STOP]),
    "messages and done": (call(MESSAGES), [STARTED, sse.DONE]),
    "responses": (
        call(RESPONSES),
        [CREATED, named("response.completed", response=response("cancelled"))],
    ),
    "responses of nothing": (
        call(RESPONSES),
        [CREATED, named("response.completed", response=response("incomplete", 0))],
    ),
}


BEFORE_A_TOKEN = (
    "completions",
    "completions with usage",
    "chat",
    "chat with usage",
    "messages",
    "messages that end",
    "messages and done",
    "responses",
    "responses of nothing",
)


@pytest.mark.parametrize("size", [1, 50, 1 << 16])
@pytest.mark.parametrize("name", ABORTED)
def test_an_end_that_is_none_is_seen(name: str, size: int) -> None:
    asked, events = ABORTED[name]
    loop = asyncio.new_event_loop()
    sent = CHUNKED + b"".join(map(chunk, events)) + b"0\r\n\r\n"

    got, wrong = answered(Case(loop, answers=asked), sent, size)

    assert isinstance(wrong, EngineGaveUp)
    for said in (b"[DONE]", b"abort", b"end_turn", b"message_stop", b"response.completed"):
        assert said not in got
    loop.close()


@pytest.mark.parametrize("name", BEFORE_A_TOKEN)
async def test_before_its_first_token_it_is_no_start(name: str) -> None:
    asked, events = ABORTED[name]
    case = Case(asyncio.get_running_loop(), answers=asked)
    for read in (CHUNKED, *map(chunk, events), b"0\r\n\r\n"):
        if not case.wire.closing:
            case.connection.data_received(read)

    with pytest.raises(EngineFailed):
        await good_start(case.exchange, Leg(LEG.to, asked.path, {}), asked)


@pytest.mark.parametrize("code", [400, 500])
async def test_an_error_event_tells_whose_fault_it_is(code: int) -> None:
    case = Case(asyncio.get_running_loop(), answers=call(CHAT))
    case.connection.data_received(
        CHUNKED + chunk(opening() + error(code)) + chunk(sse.DONE) + b"0\r\n\r\n"
    )

    with pytest.raises(EngineRejected if code == 400 else EngineFailed):
        await good_start(case.exchange, LEG, call(CHAT))


def test_an_error_that_ends_as_the_texts_before_it_is_none() -> None:
    loop = asyncio.new_event_loop()
    text = bare("a")
    failed = text.replace(b'"choices"', b'"error":{"message":"x","code":500},"choices"')
    case = Case(loop, answers=call(CHAT))
    case.exchange.start(case.result)
    for read in (CHUNKED, *[chunk(text)] * 3, chunk(failed), chunk(sse.DONE)):
        if not case.wire.closing:
            case.connection.data_received(read)

    assert case.result.body == text * 3
    assert isinstance(case.result.ends[0], EngineFailed)
    loop.close()


def test_half_a_json_until_the_end_of_the_connection_is_none() -> None:
    """Whatever its route: HTTP cannot tell it from a whole one."""
    loop = asyncio.new_event_loop()
    body = json.dumps(whole("a", usage={"completion_tokens": 2})).encode()
    for path in (CHAT, MESSAGES, "/v1/embeddings"):
        asked = msgspec.structs.replace(call(path), streams=False)
        for cut in range(len(body) + 1):
            case = Case(loop, answers=asked)
            case.connection.data_received(JSON_HEAD + body[:cut])
            case.eof()
            case.exchange.start(case.result)
            assert (case.result.ends == [None]) == (cut == len(body)), cut
    loop.close()


def test_half_a_json_that_http_calls_whole_is_none() -> None:
    body = json.dumps(whole("a", usage={"completion_tokens": 2})).encode()
    for cut in range(len(body)):
        with pytest.raises(EngineFailed):
            good_whole(body[:cut], LEG, call(CHAT))
    good_whole(body, LEG, call(CHAT))
    with pytest.raises(EngineFailed):
        good_whole(body.replace(b'"stop"', b'""'), LEG, call(CHAT))


IN_STREAMS = {
    "chat": (call(CHAT), [opening(), piece("a")], piece("", "stop"), [usage(), sse.DONE]),
    "completions": (call(COMPLETIONS), [choice(0)], choice(0, "stop"), [sse.DONE]),
    "chat with one reason": (
        call(CHAT),
        [bare("a"), bare("b")],
        bare("c"),
        [bare("d", "stop"), sse.DONE],
    ),
    "messages": (call(MESSAGES), [STARTED, BLOCK, TEXT], ended("end_turn"), [STOP]),
    "responses": (
        call(RESPONSES),
        [CREATED, DELTA],
        named("response.completed", response={**response("completed"), "x": 1.50}),
        [],
    ),
}


@pytest.mark.parametrize("field", ["kv_transfer_params", "ec_transfer_params", "remote_host"])
@pytest.mark.parametrize("name", IN_STREAMS)
def test_no_stream_says_where_kv_lies(name: str, field: str) -> None:
    """vLLM 0.33 says it in the chunk with the finish reason."""
    asked, before, last, after = IN_STREAMS[name]
    said = encode({field: PARAMS})[1:-1]
    telling = [last.replace(b'data: {"', b'data: {%b,"' % said, 1)]
    if name == "responses":
        telling.append(last.replace(b'"response":{', b'"response":{%b,' % said, 1))
    else:
        telling.append(last.replace(b'"choices":[{', b'"choices":[{%b,' % said, 1))
    loop = asyncio.new_event_loop()
    for told, size in itertools.product(telling, (1, 1 << 16)):
        sent = CHUNKED + b"".join(map(chunk, [*before, told, *after])) + b"0\r\n\r\n"

        got, wrong = answered(Case(loop, answers=asked), sent, size)

        assert (got, wrong) == (b"".join([*before, last, *after]), None)
    loop.close()


@pytest.mark.parametrize("null", [True, False])
def test_no_whole_answer_says_where_kv_lies(null: bool) -> None:
    loop = asyncio.new_event_loop()
    said = whole("a", usage={"completion_tokens": 2}, n=1.50)
    told = encode({**said, "kv_transfer_params": None if null else PARAMS})
    asked = msgspec.structs.replace(call(CHAT), streams=False)
    for head in (
        b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
        % len(told),
        JSON_HEAD,
    ):
        for size in (100, 1 << 16):
            case = Case(loop, answers=asked)
            for read in read_in(head + told, size):
                case.connection.data_received(read)
            if not case.wire.given_back and not case.wire.closing:
                case.eof()
            case.exchange.start(case.result)

            assert case.result.body == encode(said)
            length = dict(case.exchange.headers).get(b"content-length")
            assert length in (None, b"%d" % len(encode(said)))
    loop.close()


@pytest.mark.parametrize("length", [10, LARGE_BYTES])
def test_nor_one_with_a_field_of_any_name(length: int) -> None:
    """Long ones are read by a decoder of their own."""
    said = {**whole("a" * length), "\0": 1}

    cleared = without_ours(encode({"kv_transfer_params": PARAMS, **said}))

    assert cleared == encode(said)


def test_a_client_that_may_set_them_gets_them() -> None:
    loop = asyncio.new_event_loop()
    asked = call(CHAT, kv_transfer_params=PARAMS)
    told = piece("", "stop").replace(b'{"id"', b'{"kv_transfer_params":{},"id"')
    sent = CHUNKED + b"".join(map(chunk, [piece("a"), told, sse.DONE])) + b"0\r\n\r\n"

    assert answered(Case(loop, answers=asked), sent, 1 << 16)[0] == piece("a") + told + sse.DONE
    loop.close()


ENCODED = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-encoding: %b\r\n"


@pytest.mark.parametrize("framing", ["length", "chunks", "the connection's end"])
@pytest.mark.parametrize("name", STREAMS)
def test_a_stream_that_is_encoded_is_not_taken_for_whole(name: str, framing: str) -> None:
    """No engine is asked for that, and where such a stream ends cannot be seen. `identity` encodes nothing."""
    asked, events, needed = STREAMS[name]
    loop = asyncio.new_event_loop()
    for code, sent, good in (
        (b"gzip", gzip.compress(b"".join(events)), False),
        (b"gzip", gzip.compress(b"".join(events))[:-9], False),
        (b"identity", b"".join(events[: needed - 1]), False),
        (b"identity", b"".join(events), True),
    ):
        head = ENCODED % code
        if framing == "length":
            said = head + b"content-length: %d\r\n\r\n" % len(sent) + sent
        elif framing == "chunks":
            said = head + b"transfer-encoding: chunked\r\n\r\n" + chunk(sent) + b"0\r\n\r\n"
        else:
            said = head + b"\r\n" + sent
        _, wrong = answered(Case(loop, answers=asked), said, 1 << 16)
        assert (wrong is None) is good, code
    loop.close()


DEEP = b"[" * 20_000 + b"]" * 20_000
NO_ENDS = {
    "of no status": (RESPONSES, b'{"id": "r", "output": []}'),
    "of null": (RESPONSES, b'{"id": "r", "status": null, "output": []}'),
    "of an empty status": (RESPONSES, b'{"id": "r", "status": "", "output": []}'),
    "under way": (RESPONSES, b'{"id": "r", "status": "in_progress", "output": []}'),
    "a message of an empty reason": (MESSAGES, b'{"content": [], "stop_reason": ""}'),
    "a response of no UTF-8": (RESPONSES, b'{"status": "\xff"}'),
    "a message that is too deep": (MESSAGES, b'{"stop_reason": "x", "content": %b}' % DEEP),
    "half a vector": ("/v1/embeddings", b'{"data": [{"embedding": [0.1, 0.2'),
    "a vector and more": ("/v1/embeddings", b'{"data": []} {'),
    "half a list": ("/tokenize", b'[{"tokens": [1'),
    "a vector that is too deep": ("/v1/embeddings", b'{"data": %b}' % DEEP),
    "no vector": ("/v1/embeddings", b"null"),
    "an empty object": ("/v1/score", b"{}"),
    "an empty list": ("/rerank", b" [ ] "),
    "a text": ("/v1/embeddings", b'"x"'),
    "a page": ("/v1/embeddings", b"<html></html>"),
    "a long page": ("/v1/embeddings", b"<html>" * HELD_BYTES),
    "a stream": ("/v1/embeddings", b'data: {"choices": []}\n\ndata: [DONE]\n\n'),
    "an error": ("/v1/embeddings", b'{"error": {"message": "no", "code": 500}}'),
    "an older error": ("/tokenize", b'{"object": "error", "message": "no", "code": 500}'),
}


@pytest.mark.parametrize("name", NO_ENDS)
async def test_an_answer_that_is_no_stream_says_that_it_is_all(name: str) -> None:
    path, said = NO_ENDS[name]
    asked = msgspec.structs.replace(call(path, stream=False), streams=False)
    length = b"content-length: %d\r\n" % len(said)
    case = Case(asyncio.get_running_loop(), answers=asked)
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
    case.connection.data_received(head + length + b"\r\n" + said)

    with pytest.raises(EngineFailed):
        await good_start(case.exchange, Leg(LEG.to, path, {}), asked)


@pytest.mark.parametrize(
    ("path", "said", "more"),
    [
        (RESPONSES, b'{"status": "queued", "output": []}', {"background": True}),
        (RESPONSES, b'{"status": "incomplete", "output": [1]}', {}),
        ("/v1/embeddings", b'{"data": [{"embedding": [NaN]}]}', {}),
        ("/v1/embeddings", b"[" + b"0," * (HELD_BYTES // 2) + b"0]", {}),
        ("/v1/embeddings", b'{"error": null, "data": [1]}', {}),
        ("/detokenize", b'{"prompt": "an \\"error\\""}', {}),
    ],
    ids=["in the background", "incomplete", "python's own", "long", "no error", "of an error"],
)
async def test_and_one_that_does_is_taken(path: str, said: bytes, more: dict[str, Any]) -> None:
    asked = msgspec.structs.replace(call(path, stream=False, **more), streams=False)
    case = Case(asyncio.get_running_loop(), answers=asked)
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    case.connection.data_received(head % len(said) + said)

    await good_start(case.exchange, Leg(LEG.to, path, {}), asked)


VECTOR = b'{"data": [{"embedding": [0.1]}]}'
UNREAD = {
    "bytes": (b"content-type: application/octet-stream\r\n", b"\0\1", True),
    "bytes of no length": (b"content-type: application/octet-stream\r\n", b"\0\1", False),
    "encoded": (b"content-encoding: gzip\r\n", gzip.compress(VECTOR), True),
    "encoded, of no length": (b"content-encoding: gzip\r\n", gzip.compress(VECTOR), False),
    "of no type and length": (b"", VECTOR, None),
    "half, of no type and length": (b"", VECTOR[:9], False),
}


@pytest.mark.parametrize("name", UNREAD)
async def test_what_cannot_be_read_is_whole_if_http_says_so(name: str) -> None:
    """And what the end of its connection ends, if it is JSON."""
    head, said, whole = UNREAD[name]
    asked = msgspec.structs.replace(call("/v1/embeddings", stream=False), streams=False)
    case = Case(asyncio.get_running_loop(), answers=asked)
    length = b"content-length: %d\r\n" % len(said) if whole and "no length" not in name else b""
    case.connection.data_received(b"HTTP/1.1 200 OK\r\n" + head + length + b"\r\n" + said)
    if not length:
        case.connection.eof_received()

    try:
        await good_start(case.exchange, Leg(LEG.to, asked.path, {}), asked)
    except EngineFailed:
        assert whole is False
    else:
        assert whole is not False


def of(path: str, choices: int) -> bytes:
    if path == NATIVE:
        end = {"meta_info": {"finish_reason": {"type": "stop"}}}
        return encode([end] * choices)
    return encode({"choices": [{"index": i, "finish_reason": "stop"} for i in range(choices)]})


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        (CHAT, {"n": 3}),
        (COMPLETIONS, {"prompt": ["a", "b", "c"]}),
        (COMPLETIONS, {"prompt": [[1] * 9_000, [2] * 9_000, [3]]}),
        (GENERATE, {"sampling_params": {"n": 3}}),
        (NATIVE, {"text": ["a", "b", "c"]}),
    ],
)
async def test_an_answer_has_as_many_choices_as_were_asked_for(
    path: str, fields: dict[str, Any]
) -> None:
    """A stream must say why each of them ends, and so must one that is none."""
    asked = msgspec.structs.replace(call(path, stream=False, **fields), streams=False)

    async def taken(choices: int) -> None:
        said = of(path, choices)
        case = Case(asyncio.get_running_loop(), answers=asked)
        head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
        case.connection.data_received(head % len(said) + said)
        leg = Leg(LEG.to, path, {})
        if asked.api is None:
            good_whole(await case.exchange.ready(WHOLE_BYTES), leg, asked)
        else:
            await good_start(case.exchange, leg, asked)

    await taken(3)
    with pytest.raises(EngineFailed):
        await taken(2)


BLANKS = b" \r\n\t" * 50


@pytest.mark.parametrize(
    ("path", "field", "prompts"),
    [
        (COMPLETIONS, b"prompt", b'"a", "b"'),
        (COMPLETIONS, b"prompt", b"[1], [2]"),
        (NATIVE, b"text", b'"a", "b"'),
        (NATIVE, b"input_ids", b"[1], [2]"),
    ],
)
async def test_prompts_behind_blanks_are_counted(path: str, field: bytes, prompts: bytes) -> None:
    """As bodies are written that are meant to be read; behind 63 blanks they were one."""
    body = b'{"stream": true, "%b": [%b%b]}' % (field, BLANKS, prompts.replace(b" ", BLANKS))
    asked = Call("c", "c-1", path, parse_object(body), streams=True, api=APIS.get(path))

    assert choices_of(asked) == 2 if path == COMPLETIONS else outputs_of(asked) == 2


MANY = ["x" * 4_000] * (MOST_PROMPTS_BYTES // 4_000 + 1)
VECTORS = [[[0.5] * 1_000]] * 2_000


@pytest.mark.parametrize("prompts", [MANY, [""] * (MOST_COMMAS + 2)], ids=["long", "many"])
@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize(
    ("path", "field"),
    [
        (COMPLETIONS, "prompt"),
        (COMPLETIONS, "prompt_embeds"),
        (NATIVE, "text"),
        (NATIVE, "input_embeds"),
    ],
)
def test_of_more_prompts_than_are_counted_only_the_end_says_that_all_are_answered(
    path: str, field: str, whole: bool, prompts: list[str]
) -> None:
    """An engine that had answered the first of them passed as one that had answered all."""
    asked = call(path, **{field: VECTORS if field == "input_embeds" else prompts})
    ends = [choice(0, "stop"), choice(1, "stop")]
    if path == NATIVE:
        end = {"text": "x", "meta_info": {"finish_reason": {"type": "stop"}}}
        ends = [sse.event({**end, "index": index}) for index in range(2)]

    error = end_event_by_event(asked, [*ends, sse.DONE] if whole else ends)

    assert error is None if whole else isinstance(error, EngineFailed)


@pytest.mark.parametrize("text", ["x" * (MOST_PROMPTS_BYTES + 1), [7] * MOST_PROMPTS_BYTES])
def test_one_prompt_is_one_however_long(text: Any) -> None:
    assert end_event_by_event(call(COMPLETIONS, prompt=text), [choice(0, "stop")]) is None


@pytest.mark.parametrize("prompt", [[7] * 9_000, [[7] * 9_000]])
def test_a_long_prompt_of_ids_is_one(prompt: list[Any]) -> None:
    """It was refused in the middle of its answer, as too long to be read."""
    assert choices_of(call(COMPLETIONS, prompt=prompt)) == 1


@pytest.mark.parametrize("bad", [b'"\xff"', DEEP], ids=["no UTF-8", "too deep"])
@pytest.mark.parametrize(
    ("path", "shape"),
    [
        (CHAT, b'data: {"error": %b}\n\n'),
        (CHAT, b'data: {"choices": [{"index": 0, "delta": {}, "finish_reason": %b}]}\n\n'),
        (CHAT, b'data: {"kv_transfer_params": %b, "choices": []}\n\n'),
        (MESSAGES, b'event: error\ndata: {"error": %b}\n\n'),
        (MESSAGES, b'event: message_delta\ndata: {"delta": {"stop_reason": %b}}\n\n'),
        (RESPONSES, b'event: response.completed\ndata: {"response": {"status": %b}}\n\n'),
        (RESPONSES, b'data: {"type": %b}\n\n'),
    ],
)
async def test_an_event_that_cannot_be_read_ends_nothing(
    path: str, shape: bytes, bad: bytes
) -> None:
    """It raised what no caller knew: the client had an internal error, and no other engine was asked."""
    asked = call(path)
    case = Case(asyncio.get_running_loop(), answers=asked)
    for read in (CHUNKED, chunk(shape % bad), b"0\r\n\r\n"):
        if not case.wire.closing:
            case.connection.data_received(read)

    try:
        await good_start(case.exchange, Leg(LEG.to, path, {}), asked)
    except EngineFailed:
        return
    case.exchange.start(case.result)
    assert isinstance(case.result.ends[0], EngineFailed)


@pytest.mark.parametrize(
    "said",
    [
        b'{"choices": [{"index": 0, "finish_reason": "st\xffop"}]}',
        b'{"choices": [{"index": 0, "finish_reason": "stop", "message": %b}]}' % DEEP,
    ],
    ids=["no UTF-8", "too deep"],
)
def test_a_whole_answer_that_cannot_be_read_is_the_engines_failure(said: bytes) -> None:
    with pytest.raises(EngineFailed):
        good_whole(said, LEG, call(CHAT))
