"""Time: what an engine's answer can make one callback of the gateway's event loop cost, streamed or not.

CPU time of the thread, as in `test_time.py`; a read of an engine's connection has 256,000 bytes at most.
"""

import asyncio
from functools import partial

import pytest

from pdgate.forwarders.resuming.journal import StreamJournal
from pdgate.forwarders.resuming.relay import Relay
from pdgate.gateway.config import Settings
from pdgate.gateway.intake import Intake
from pdgate.gateway.request_headers import RequestHeaders
from pdgate.gateway.upstream.connection import SLICE_BYTES
from pdgate.protocols import internal, named_events, native, openai
from pdgate.protocols.apis import MESSAGES, RESPONSES
from pdgate.protocols.call import CHAT, Call, encode
from pdgate.protocols.endings import MOST_STREAMED, ending_of
from pdgate.protocols.errors import GatewayError
from pdgate.protocols.sse import MAX_EVENT_BYTES
from pdgate.protocols.usage import usage_in
from tests.support.cpu import CALLBACK_SECONDS, cpu_seconds
from tests.support.scripted import ScriptedAnswer
from tests.support.wire import LEG, Result

READ_BYTES = 256_000
WHOLE_BYTES = 16 << 20

INTAKE = Intake(Settings().max_body_bytes)


def call(path: str, n: int = 1) -> Call:
    asked = {"model": "m", "messages": [], "prompt": "x", "input": "x", "stream": True, "n": n}
    return INTAKE.call(path, RequestHeaders([]), encode(asked), "x")


MANY = {
    "blank": b"\n\n",
    "comments": b":\n\n",
    "CRLF": b"\n\r\n",
    "numbers": b"data:1\n\n",
    "objects": b"data: {}\n\n",
    "no JSON": b"data: x\n\n",
    "named": b"event: a\n\n",
    "ours": b'data: {"kv_transfer_params":1}\n\n',
    "choices": b'data: {"choices":[{"index":0}]}\n\n',
}


@pytest.mark.parametrize("event", MANY.values(), ids=MANY.keys())
@pytest.mark.parametrize("path", [CHAT, MESSAGES, RESPONSES])
def test_a_read_full_of_events(event: bytes, path: str) -> None:
    """Four streams of blank lines kept all others waiting for 47 s of CPU time."""
    read = event * (READ_BYTES // len(event))
    for n in (1, 2):
        for piece in (read, b"d" + read + b"d"):
            feed = partial(ending_of(call(path, n)).feed, piece)
            assert cpu_seconds(feed) <= CALLBACK_SECONDS
    assert cpu_seconds(lambda: openai.says_nothing_yet(read)) <= CALLBACK_SECONDS
    assert cpu_seconds(lambda: named_events.says_nothing_yet(read)) <= CALLBACK_SECONDS


OUTPUTS = "/generate"

LARGE = {
    "error": (CHAT, b'{"choices":[],"error":[', b"[],", b"0]}"),
    "object": (CHAT, b'{"choices":[],"object":[', b"[],", b"0]}"),
    "stop reason": (CHAT, b'{"choices":[{"finish_reason":"a","stop_reason":[', b"[],", b"0]}]}"),
    "choices": (CHAT, b'{"choices":[', b"{},", b"{}]}"),
    "choices that are counted": (
        CHAT,
        b'{"choices":[',
        b'{"index":0,"finish_reason":"a"},',
        b"{}]}",
    ),
    "hidden choices": (
        CHAT,
        b'{"choices":[',
        b'{"inde\\u0078":0,"finish_reaso\\u006e":"a"},',
        b"{}]}",
    ),
    "type": (MESSAGES, b'{"type":[', b"[],", b"0]}"),
    "delta": (MESSAGES, b'{"type":"message_delta","delta":[', b"[],", b"0]}"),
    "usage": (MESSAGES, b'{"type":"message_delta","stop_reason":"a","usage":[', b"[],", b"0]}"),
    "reason": (MESSAGES, b'{"type":"message_delta","stop_reason":[', b"[],", b"0]}"),
    "output": (RESPONSES, b'{"type":"response.completed","response":{"output":[', b"[],", b"0]}}"),
    "status": (RESPONSES, b'{"type":"response.completed","status":[', b"[],", b"0]}"),
    "an output's error": (OUTPUTS, b'{"error":[', b"[],", b"0]}"),
    "an output's reason": (OUTPUTS, b'{"meta_info":{"finish_reason":[', b"[],", b"0]}}"),
    "outputs": (OUTPUTS, b"[", b"{},", b"{}]"),
    "outputs that have ended": (OUTPUTS, b"[", b'{"meta_info":{"finish_reason":{}}},', b"{}]"),
    "output of a whole one": (RESPONSES, b'{"output":[', b"[],", b"0]}"),
}
Parts = tuple[str, bytes, bytes, bytes]


def filled(parts: Parts, size: int) -> bytes:
    _, start, piece, end = parts
    return start + piece * ((size - len(start) - len(end)) // len(piece)) + end


@pytest.mark.parametrize("parts", LARGE.values(), ids=LARGE.keys())
def test_the_largest_event(parts: Parts) -> None:
    """One with an error of 8 MiB took 0.6 s."""
    ending = ending_of(call(parts[0]))
    event = b"data: " + filled(parts, MAX_EVENT_BYTES - 64) + b"\n\n"
    assert cpu_seconds(lambda: ending.feed(event)) <= CALLBACK_SECONDS


@pytest.mark.parametrize("path", [CHAT, MESSAGES, RESPONSES])
@pytest.mark.parametrize("end", [b"\n", b"\r", b"\r\n"])
def test_the_largest_event_of_many_lines(path: str, end: bytes) -> None:
    line = b"data:1" + end
    event = line * ((MAX_EVENT_BYTES - 64) // len(line)) + b"\n\n"
    ending = ending_of(call(path))

    assert cpu_seconds(lambda: ending.feed(event)) <= CALLBACK_SECONDS
    assert ending.gave_up
    assert ending.crowded


@pytest.mark.parametrize("parts", LARGE.values(), ids=LARGE.keys())
def test_the_largest_whole_answer(parts: Parts) -> None:
    answer = filled(parts, WHOLE_BYTES)

    def read() -> None:
        try:
            if parts[0] == CHAT:
                openai.raise_unless_whole(answer, at="d0")
            elif parts[0] == OUTPUTS:
                native.raise_unless_whole(answer, at="d0")
            else:
                named_events.raise_unless_whole(parts[0], answer, at="d0")
        except GatewayError:
            return

    assert cpu_seconds(read) <= CALLBACK_SECONDS


def test_the_largest_answer_that_ends_with_its_connection() -> None:
    for costly in (b"1,", b"[],"):
        answer = b"[%b0]" % (costly * (WHOLE_BYTES // len(costly) - 1))
        assert cpu_seconds(partial(internal.is_json, answer)) <= CALLBACK_SECONDS


def test_events_after_many_choices_have_ended() -> None:
    """To compare all that have begun with all that have ended took 1 ms for each event."""
    ending = ending_of(call(CHAT, n=2))
    ended = b",".join(b'{"index":%d,"finish_reason":"a"}' % n for n in range(MOST_STREAMED))
    assert ending.feed(b'data: {"choices":[%b]}\n\n' % ended)
    event = b'data: {"choices":[{"index":0}]}\n\n'
    read = event * (SLICE_BYTES // len(event))

    assert cpu_seconds(lambda: ending.feed(read)) <= CALLBACK_SECONDS
    assert ending.whole


def test_choices_without_an_end_end_the_answer() -> None:
    """Each was remembered."""
    ending = ending_of(call(CHAT, n=2))
    for n in range(2 * MOST_STREAMED):
        ending.feed(b'data: {"choices":[{"index":%d}]}\n\n' % n)
        if ending.gave_up:
            break
    assert ending.crowded


OURS = b'"kv_transfer_params":{}'
MENTIONING = {
    "fields": (b"{%b" % OURS, b',"a":0', b"}"),
    "choices": (b'{%b,"choices":[{"kv_transfer_params":{}}' % OURS, b",{}", b"]}"),
    "choices that are counted": (
        b'{"choices":[{"index":0,%b}' % OURS,
        b',{"index":1,"finish_reason":"a"}',
        b"]}",
    ),
    "messages": (b'{"message":', b'{"message":', b"{%b" % OURS),
    "quotes": (b'{%b,"a":[""' % OURS, b',""', b"]}"),
    "names": (b'{"a":["transfer_"', b',"transfer_"', b"]}"),
    "names that go on": (b'{"a":["remote_', b"a", b'"]}'),
}


@pytest.mark.parametrize("parts", MENTIONING.values(), ids=MENTIONING.keys())
def test_the_largest_event_from_which_fields_are_taken(parts: tuple[bytes, bytes, bytes]) -> None:
    answer = filled((CHAT, *parts), MAX_EVENT_BYTES)

    assert cpu_seconds(lambda: internal.without_ours(answer)) <= CALLBACK_SECONDS


def relayed(events: bytes) -> None:
    answer = ScriptedAnswer(LEG, asyncio.Event())
    relay = Relay(
        answer, StreamJournal(), "d0", call(CHAT), rewrite=None, shows_ids=False, counts=False
    )
    relay.client = Result()
    relay.data(events)


@pytest.mark.parametrize("event", MANY.values(), ids=MANY.keys())
def test_a_turn_of_a_stream_that_could_be_resumed(event: bytes) -> None:
    read = event * (SLICE_BYTES // len(event))

    assert cpu_seconds(lambda: relayed(read)) <= CALLBACK_SECONDS


RESUMED = {
    "lists": (CHAT, b'{"choices":[{"logprobs":[', b"[],", b"0]}]}"),
    "choices": (CHAT, b'{"choices":[', b"{},", b"{}]}"),
    "ids": (CHAT, b'{"prompt_token_ids":[', b"1,", b'0],"choices":[{"token_ids":[1]}]}'),
    "ids that go on": (CHAT, b'{"a":[0', b',"token_ids":[1,1', b""),
}


@pytest.mark.parametrize("parts", RESUMED.values(), ids=RESUMED.keys())
def test_the_largest_event_of_a_stream_that_could_be_resumed(parts: Parts) -> None:
    event = b"data: " + filled(parts, MAX_EVENT_BYTES - 64) + b"\n\n"

    assert cpu_seconds(lambda: relayed(event)) <= CALLBACK_SECONDS


@pytest.mark.parametrize("end", [b"", b'"usage":{"prompt_tokens":', b'"meta_info":'])
def test_the_largest_end_of_an_answer(end: bytes) -> None:
    events = b'data: {"a":[' + b"[]," * (MAX_EVENT_BYTES // 3) + b"0]," + end + b"0}\n\n"

    assert cpu_seconds(lambda: usage_in(events)) <= CALLBACK_SECONDS
