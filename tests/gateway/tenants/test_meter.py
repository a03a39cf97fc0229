"""What engines are asked for of a call whose tokens are counted, and what passes of their answers."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import pytest

from pdgate.forwarders.record import Record
from pdgate.gateway.tenants.meter import MOST_HELD_BYTES, Meter, asking
from pdgate.protocols.call import CHAT, Call, parse_object
from pdgate.protocols.errors import BadRequest
from pdgate.protocols.fields import MOST_LIST_BYTES, MOST_VALUE_BYTES, is_true
from tests.support.by_hand import ByHand
from tests.support.sinks import Collected


def chat(**fields: Any) -> Call:
    body = msgspec.json.encode({"model": "m", "messages": [], "stream": True, **fields})
    return Call("a", "a-1", CHAT, parse_object(body), streams=True)


LONG = {"x": "a" * MOST_VALUE_BYTES}


@pytest.mark.parametrize(
    ("options", "asks"),
    [
        ({}, False),
        ({"include_usage": None}, False),
        ({"include_usage": False}, False),
        ({"include_usage": "false"}, False),
        ({"include_usage": "0"}, False),
        ({"include_usage": [0]}, False),
        ({"include_usage": False, **LONG}, False),
        ({"include_usage": True}, True),
        ({"include_usage": 1}, True),
        ({"include_usage": "yes"}, True),
        ({"include_usage": True, **LONG}, True),
    ],
)
def test_an_engine_is_asked_for_usage_whatever_the_client_says(
    options: Mapping[str, Any], asks: bool
) -> None:
    """A flag as engines read it: "false" is false, and 1 is true."""
    asked, client_asks = asking(chat(stream_options=options))

    assert client_asks is asks
    assert asked.value("stream_options", most_bytes=MOST_LIST_BYTES) == {
        **options,
        "include_usage": True,
    }


@pytest.mark.parametrize(
    ("options", "each"),
    [
        ({"include_usage": False}, False),
        ({"include_usage": None}, False),
        ({"include_usage": "no"}, False),
        ({"include_usage": "yes"}, True),
        ({"include_usage": True}, True),
        ({}, True),
    ],
)
def test_a_client_that_wants_no_usage_gets_none_with_each_event(
    options: Mapping[str, Any], each: bool
) -> None:
    """vLLM gives it with each only if it gives any, which it does unless it is told not to."""
    asked, _ = asking(chat(stream_options={**options, "continuous_usage_stats": True}))

    found = asked.value("stream_options")
    assert is_true(found["include_usage"])
    assert ("continuous_usage_stats" in found) is each


@pytest.mark.parametrize("fields", [{}, {"stream_options": None}])
def test_the_same_without_options(fields: Mapping[str, Any]) -> None:
    asked, client_asks = asking(chat(**fields))

    assert (asked.value("stream_options"), client_asks) == ({"include_usage": True}, False)


@pytest.mark.parametrize("options", ["x", [], False, {"x": "a" * MOST_LIST_BYTES}])
def test_options_that_cannot_be_read_are_refused(options: object) -> None:
    """An engine might read them, and leave the usage out."""
    with pytest.raises(BadRequest, match="stream_options"):
        asking(chat(stream_options=options))


BLANK = {"LF": b"\n\n", "CRLF": b"\r\n\r\n", "CRLF and LF": b"\r\n\n"}
blank_lines = pytest.mark.parametrize("blank", BLANK.values(), ids=BLANK)
WORD = b'data: {"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":null}]}'
USAGE = b'{"prompt_tokens":9,"completion_tokens":5}'
LAST = b'data: {"choices":[],"usage":%b}' % USAGE
DONE = b"data: [DONE]"


async def metered(
    pieces: Sequence[bytes], last: bytes, *, hides: bool = True
) -> tuple[list[bytes], Meter, Record]:
    """The pieces that pass, the last one with the end."""
    meter, record, answer, sink = Meter(hides, ()), Record(chat()), ByHand(), Collected()
    meter.of(answer, record).start(sink)
    for piece in pieces:
        answer.data(piece)
    answer.ended(None, last)
    await sink.body()
    return sink.chunks, meter, record


def usage_of(record: Record) -> object:
    return None if record.usage_said is None else msgspec.json.decode(record.usage_said)


@blank_lines
@pytest.mark.parametrize("hides", [True, False])
async def test_events_pass_as_they_come_and_are_counted(blank: bytes, hides: bool) -> None:
    """However their lines end: servers of sse-starlette write CRLF."""
    passed, meter, record = await metered(
        [WORD + blank] * 5 + [LAST + blank], DONE + blank, hides=hides
    )

    assert passed == [WORD + blank] * 5 + [LAST + blank] * (not hides) + [DONE + blank]
    assert meter.events == 7
    assert usage_of(record) == (msgspec.json.decode(USAGE) if hides else None)


@blank_lines
async def test_usage_is_kept_back_wherever_reads_end(blank: bytes) -> None:
    whole = WORD + blank + LAST + blank + DONE + blank
    for at in range(1, len(whole)):
        passed, _, record = await metered([whole[:at]], whole[at:])

        assert (b"".join(passed), at) == (WORD + blank + DONE + blank, at)
        assert (usage_of(record), at) == (msgspec.json.decode(USAGE), at)


@blank_lines
async def test_what_is_too_long_to_be_held_passes_and_what_follows_is_read_on(blank: bytes) -> None:
    half = b'data: {"choices":[{"index":0,"delta":{"content":"' + b"a" * MOST_HELD_BYTES
    pieces = [half, b"a" * 1000, b'"}}]}' + blank + LAST + blank]
    passed, _, record = await metered(pieces, DONE + blank)

    assert passed == [half, b"a" * 1000, b'"}}]}' + blank, DONE + blank]
    assert usage_of(record) == msgspec.json.decode(USAGE)
