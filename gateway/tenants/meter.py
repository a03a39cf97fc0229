"""Meter: the answer of a call whose tokens are counted, on its way to the client.

Engines say what a stream took in a last event, if they are asked to; they are asked for all calls that are
metered, and of a client that has not asked itself the event is kept back:

    data: {..., "choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 40, ...}}

Events are counted as well, for streams that end before it: one is one token, or several (speculation, --stream-interval).

Source: vLLM 0.32.0, entrypoints/openai/chat_completion/serving.py, the final usage chunk, and should_include_usage(), which it asks;
OpenAI API reference, stream_options.
"""

from typing import Final

import msgspec

from pdgate.forwarders.base import Answer
from pdgate.forwarders.body_filter import CRLF_END, EVENT_END, BodyFilter
from pdgate.forwarders.record import Deliver, Record
from pdgate.protocols import sse
from pdgate.protocols.call import CHAT, COMPLETIONS, Call, Headers, Raw, encode
from pdgate.protocols.errors import BadRequest, GatewayError
from pdgate.protocols.fields import MOST_LIST_BYTES, UNREADABLE, is_true

MOST_HELD_BYTES: Final = 64 << 10
"""Of an event that is not whole yet; a longer one is no usage."""
_USAGE: Final = b'"usage"'
_OPTIONS: Final = "stream_options"

_NULL: Final = Raw(b"null")


class _LastEvent(msgspec.Struct):
    usage: Raw = _NULL
    choices: Raw = _NULL


_read: Final = msgspec.json.Decoder(_LastEvent).decode


def asking(call: Call) -> tuple[Call, bool]:
    """The call as engines get it, which say with a stream what it took, and whether that is the client's to see.

    Raises BadRequest for options that are not read: an engine might, and say nothing.
    """
    if not call.streams or call.path not in (CHAT, COMPLETIONS):
        return call, True
    options = call.value(_OPTIONS, {}, MOST_LIST_BYTES)
    if not isinstance(options, dict):
        raise BadRequest("stream_options must be an object", param=_OPTIONS)
    found = options.get("include_usage")
    if found is True:
        return call, True
    wants = is_true(found)
    more = {**options, "include_usage": True}
    if "include_usage" in options and not wants:
        # Each event would say what it took: engines do so only if they say it at all, of which this made them.
        more.pop("continuous_usage_stats", None)
    body = {**call.body, _OPTIONS: Raw(encode(more))}
    return msgspec.structs.replace(call, body=body), wants


class Meter:
    """Meter of one call, however many engines answer it.

    Attributes:
        events: Of streams, that have passed.
        hides: Whether the last event is kept back.
        headers: That answers get.
    """

    __slots__ = ("events", "headers", "hides")

    def __init__(self, hides: bool, headers: Headers) -> None:
        self.events = 0
        self.hides = hides
        self.headers = headers

    def of(self, answer: Answer, record: Record) -> Answer:
        record.headers = self.headers
        return MeteredBody(answer, self, record)


def metered(meter: Meter, deliver: Deliver) -> Deliver:
    """The same, through the meter."""

    async def delivered(answer: Answer, record: Record) -> None:
        await deliver(meter.of(answer, record), record)

    return delivered


class MeteredBody(BodyFilter):
    """
    The rest of an event that is not whole waits for its end, so that none that is kept back has begun.
    """

    __slots__ = ("_held", "_meter", "_passing", "_record")

    def __init__(self, answer: Answer, meter: Meter, record: Record) -> None:
        super().__init__(answer)
        self._meter = meter
        self._record = record
        self._held = b""
        self._passing = False

    def data(self, chunk: bytes, framed: bytes = b"") -> None:
        self._meter.events += chunk.count(EVENT_END) or chunk.count(CRLF_END)
        if not self._meter.hides:
            self.client.data(chunk, framed)
        elif not self._held and chunk.endswith(EVENT_END) and _USAGE not in chunk:
            # As nearly all are.
            self._passing = False
            self.client.data(chunk, framed)
        elif out := self._sifted(chunk):
            self.client.data(out, framed if out == chunk else b"")

    def ended(self, error: GatewayError | None, last: bytes = b"") -> None:
        self._meter.events += last.count(EVENT_END) or last.count(CRLF_END)
        if self._meter.hides and (last or self._held):
            last = self._sifted(last) + self._held
            self._held = b""
        self.client.ended(error, last)

    def _sifted(self, chunk: bytes) -> bytes:
        """What can pass now, without usage; the rest of an event that is not whole is held."""
        begun = b""
        if self._passing and chunk:
            # The rest of an event that is too long to be held.
            begun = sse.events(chunk)[0]
            self._passing = not begun.endswith(sse.EVENT_ENDS)
            chunk = chunk[len(begun) :]
        events, self._held = sse.cut_events(self._held + chunk)
        out = [event for event in events if _USAGE not in event or not self._is_usage(event)]
        if len(self._held) > MOST_HELD_BYTES:
            out.append(self._held)
            self._held, self._passing = b"", True
        return begun + b"".join(out)

    def _is_usage(self, event: bytes) -> bool:
        """Whether the event says that and nothing else; what it says is kept."""
        try:
            said = _read(sse.payload(event))
        except UNREADABLE:
            return False
        usage = bytes(said.usage)
        if usage == b"null":
            return False
        self._record.usage_said = Raw(usage)
        return bytes(said.choices).translate(None, b" \t\r\n") in (b"[]", b"null")
