"""End of a stream in each API, so that one that was cut is not taken for a whole one.

    chat, completions,
    and tokens          a finish_reason of every choice; "data: [DONE]" comes after that only
    messages            message_delta with a stop_reason, and then message_stop
    responses           response.completed, response.incomplete
    SGLang's outputs    a finish_reason of every one, in its meta_info
    all others          nothing that is known here: what HTTP says must do

Engines that give a request up do not always say so. vLLM 0.32.0 has no chunk for a request that
was aborted before its first token: completions are "data: [DONE]" alone, chats the chunk that names
the role, the usage if it was asked for, and "data: [DONE]"; a message is said to have ended well,
after 0 tokens; a response is completed with the status "cancelled".

Source: vLLM 0.32.0, entrypoints/openai/chat_completion/serving.py
(chat_completion_stream_generator), completion/serving.py (completion_stream_generator),
responses/serving.py (responses_stream_generator, responses_full_generator),
anthropic/serving.py (message_stream_converter, _to_anthropic_stop_reason).
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Final

import msgspec

from pdgate.protocols import native, sse
from pdgate.protocols.apis import GENERATE, Kind, Shape
from pdgate.protocols.call import COMPLETIONS, Call, Raw, value
from pdgate.protocols.chunks import (
    GAVE_UP,
    LARGE_BYTES,
    MOST_CHOICES,
    Event,
    TooManyChoices,
    is_recomputed,
    names_recomputed,
    read_ending_chunk,
    read_event,
    said,
)
from pdgate.protocols.errors import BadRequest, EngineRejected
from pdgate.protocols.fields import UNREADABLE, count_of, first_in_list, is_nothing
from pdgate.protocols.internal import hides, mentions_ours, without_ours
from pdgate.protocols.sampling import SAMPLING, object_in, sampling_of

UNKNOWN: Final[tuple[bytes, ...]] = ()
"""No event looks like the ones before."""

ANY_BYTES: Final = 1 << 29
"""More than any read; of a larger number a comparison takes three times as long."""

_REASON: Final = b'"finish_reason"'
_NONE_YET: Final = (b":null", b": null")

_SAYS_MORE: Final = re.compile(
    rb"finish_reason|error|\[DONE\]|transfer_|bootstrap_|remote_|disagg"
).search
"""In each event that ends a choice or a stream, or has a field that is not for clients."""

_BLANK_LINE: Final[tuple[bytes, ...]] = (b"\n\n",)
MOST_STREAMED: Final = 4096
"""Choices of one stream, if no more were asked for."""

MOST_PROMPTS_BYTES: Final = 4 << 20
"""Of a list of prompts that are counted: 4 ms a MiB. Of a longer one "[DONE]" has to say that all are answered."""

FEW_PROMPTS_BYTES: Final = 256 << 10
"""Of the shortest kind they are 90,000, which take 14 ms to count."""

MOST_COMMAS: Final = 100_000
"""Prompts are no more than these and one; a list of a million empty ones takes 160 ms."""

_LIST_OF_PROMPTS: Final = re.compile(rb"\[\s*\[\s*\[").match
"""Of vectors."""

_read_list: Final = msgspec.json.Decoder(list[msgspec.Raw]).decode

_ALWAYS: Final = frozenset({b"", b"data: [DONE]", b"data:[DONE]"})


class Ending(ABC):
    """Reads the events of one stream, of which most are passed by.

    Attributes:
        usual: How an event ends that need not be read: like others that were, which only added text.
        alone_bytes: A read that ends so has one event if it is no longer; of two the first may have said more.
        usual_unless: The same, of an end that does not say it all: unless `unless` finds something in it.
        whole: The answer has ended well: what has not come of it is not missed.
        over: And that was said last.
        gave_up: It has ended otherwise, also as the next two say.
        let_go: For want of room for its KV, which another engine may have.
        crowded: There are more lines, or choices, than are read in one callback; nothing of them has passed.
        error: The event by which the engine said that it failed; empty for none.
        half: What came behind the last whole event; None where that was the last byte.
    """

    def __init__(self, call: Call) -> None:
        # Not left to the class: what is read before it is written takes ten times as long there.
        self.usual = UNKNOWN
        self.alone_bytes = ANY_BYTES
        self.usual_unless = UNKNOWN
        self.unless: Callable[[bytes], object] | None = None
        self.whole = False
        self.over = False
        self.gave_up = False
        self.let_go = False
        self.crowded = False
        self.error = b""
        self.half: sse.WholeEvents | None = None
        self._call = call

    def feed(self, piece: bytes) -> bytes:
        """What can go on now that this has come: of whole events what `take` leaves of them."""
        half = self.half
        # As nearly all come, and needs no joining.
        if half is None and piece.endswith(b"\n\n"):
            return self.take(piece)
        if half is None:
            half = self.half = sse.WholeEvents()
        out = half.feed(piece)
        if not half.rest:
            self.half = None
        return self.take(out) if out else out

    def last(self) -> bytes | None:
        """The same of what is left when no more comes; None if that is an event that was cut."""
        rest = b"" if self.half is None else self.half.left()
        if rest.strip() not in _ALWAYS:
            return None
        return self.take(rest) if rest else rest

    def take(self, events: bytes) -> bytes:
        """What of these whole events is for the client; what comes after the end is not."""
        return self._each(events)

    def _each(self, events: bytes) -> bytes:
        if sse.is_crowded(events):
            self.gave_up = self.crowded = True
            return b""
        found = sse.events(events)
        if len(found) == 1:
            return self._read(events)
        passed = []
        for event in found:
            if self.gave_up or self.error:
                break
            if shown := self._read(event):
                passed.append(shown)
        return b"".join(passed)

    @abstractmethod
    def _read(self, event: bytes) -> bytes: ...

    def _shown(self, event: bytes, data: bytes) -> bytes:
        """Without what is between the gateway and its engines."""
        if not mentions_ours(data) or not hides(self._call.body):
            return event
        if (cleared := without_ours(data)) is data:
            return event
        return event[: event.index(b"data:")] + b"data: " + cleared + b"\n\n"


class Choices(Ending):
    def __init__(self, call: Call) -> None:
        Ending.__init__(self, call)
        self._count = choices_of(call)
        self._most = min(max(self._count, MOST_STREAMED), MOST_CHOICES)
        self._open: set[int] = set()
        self._ended: set[int] = set()
        self._front_bytes = -1

    def take(self, events: bytes) -> bytes:
        if events == sse.DONE:
            self.over, self.gave_up = self.whole, not self.whole
            return events if self.whole else b""
        if events.find(b"\n") != len(events) - 2:
            # Not one event of one line, as nearly all are.
            usual = self.usual
            if usual and events.count(usual[0]) * 2 == events.count(b"\n"):
                # But each of one line, with this end.
                return events
            return self._each(events)
        if self._count == 1 and (end := _going_on(events)):
            if not mentions_ours(events):
                # An event with this end is not the last one, and has no more fields.
                self.usual = (end,)
                if self._front_bytes < 0:
                    # Of what stands before the text: ids, names and times, which each event of a stream has in the same length.
                    at = events.find(b'"delta"')
                    self._front_bytes = at if at >= 0 else max(events.find(b'"text"'), 0)
                # Each of two has what all of them have alike, and one that ends the answer no less.
                self.alone_bytes = 2 * (self._front_bytes + len(end))
                return events
        elif (
            self._count == 1
            and events.find(_REASON) < 0
            and len(events) <= LARGE_BYTES
            and events.endswith(b"}\n\n")
            and _SAYS_MORE(events) is None
        ):
            # Of an engine that names the reason in the last event only.
            self.usual_unless, self.unless = (events[events.rfind(b'"') :],), _SAYS_MORE
            return events
        if not events.startswith(b"data: "):
            return self._each(events)
        return self._read_chunk(events, events[6:-2])

    def _read(self, event: bytes) -> bytes:
        return self._read_chunk(event, sse.payload(event))

    def _read_chunk(self, event: bytes, data: bytes) -> bytes:
        if data == b"[DONE]":
            self.over, self.gave_up = self.whole, not self.whole
            return event if self.whole else b""
        if not data:
            return event
        try:
            chunk = read_ending_chunk(data)
        except TooManyChoices:
            self.gave_up = self.crowded = True
            return b""
        except UNREADABLE:
            # Of some other kind; it ends nothing.
            return event
        if chunk.is_error:
            self.error = event
            return b""
        for choice in chunk.choices:
            if choice.finish_reason in GAVE_UP:
                self.gave_up = True
                return b""
            if (
                choice.finish_reason
                and is_recomputed(choice.stop_reason)
                and not names_recomputed(sampling_of(self._call).get("stop"))
            ):
                self.gave_up = self.let_go = True
                return b""
            # Some engines write "" where others write null.
            if choice.finish_reason:
                self._ended.add(choice.index)
                self._open.discard(choice.index)
            elif choice.index not in self._ended:
                self._open.add(choice.index)
        if chunk.choices:
            self.whole = not self._open and len(self._ended) >= self._count
            if len(self._open) + len(self._ended) > self._most:
                self.gave_up = self.crowded = True
                return b""
        return self._shown(event, data)


class Unsaid(Ending):
    """Ending of a stream of which only HTTP says how it ends."""

    def __init__(self, call: Call) -> None:
        super().__init__(call)
        self.usual = _BLANK_LINE
        self.whole = True

    def take(self, events: bytes) -> bytes:
        return events

    def _read(self, event: bytes) -> bytes:
        return event


class Message(Ending):
    def __init__(self, call: Call) -> None:
        super().__init__(call)
        self._why = False
        self._said = False

    def _read(self, event: bytes) -> bytes:
        name, data, known = _named(event)
        match name:
            case b"message_start":
                return self._shown(event, data)
            case b"content_block_start" | b"content_block_delta":
                self._said = True
            case b"message_delta":
                end = known or _read_event(data)
                usage, delta = said(end.usage), said(end.delta)
                nothing = isinstance(usage, dict) and usage.get("output_tokens") == 0
                if isinstance(delta, dict) and delta.get("stop_reason"):
                    self._why = True
                    if nothing and not self._said:
                        self.gave_up = True
                        return b""
                return self._shown(event, data)
            case b"message_stop":
                self.whole = self.over = self._why
                self.gave_up = not self._why
                return event if self.whole else b""
            case b"error":
                self.error = event
                return b""
            case b"[DONE]" if not self.whole:
                self.gave_up = True
                return b""
        return event


class Response(Ending):
    def _read(self, event: bytes) -> bytes:
        name, data, known = _named(event)
        match name:
            case b"response.created" | b"response.in_progress" | b"response.queued":
                return self._shown(event, data)
            case b"response.completed" | b"response.incomplete":
                response = (known or _read_event(data)).response
                if response is None or response.gave_up or response.is_under_way:
                    self.gave_up = True
                    return b""
                self.whole = self.over = True
                return self._shown(event, data)
            case b"error" | b"response.failed":
                self.error = event
                return b""
            case b"[DONE]" if not self.whole:
                self.gave_up = True
                return b""
        return event


class Outputs(Ending):
    """Ending of SGLang's own answers."""

    def __init__(self, call: Call) -> None:
        super().__init__(call)
        self._count = outputs_of(call)
        self._most = min(max(self._count, MOST_STREAMED), MOST_CHOICES)
        self._open: set[int] = set()
        self._ended: set[int] = set()

    def _read(self, event: bytes) -> bytes:
        data = sse.payload(event)
        if data == b"[DONE]":
            self.over, self.gave_up = self.whole, not self.whole
            return event if self.whole else b""
        output = native.read_event(data) if data else None
        if output is None:
            return event
        wrong = native.failure(output)
        if wrong is not None:
            # What an engine says of itself is not for the client, what it says of the call is.
            if isinstance(wrong, EngineRejected):
                self.error = event
            else:
                self.gave_up = True
            return b""
        if output.has_ended:
            self._ended.add(output.index)
            self._open.discard(output.index)
        elif output.index not in self._ended:
            self._open.add(output.index)
        self.whole = not self._open and len(self._ended) >= self._count
        if len(self._open) + len(self._ended) > self._most:
            self.gave_up = self.crowded = True
            return b""
        return self._shown(event, data)


class _Uncounted(Ending):
    """Of more prompts than are counted: that all of them are answered is said last."""

    _count: int
    _open: set[int]
    _ended: set[int]

    def take(self, events: bytes) -> bytes:
        return self._each(events)

    def _read(self, event: bytes) -> bytes:
        if sse.payload(event) == b"[DONE]":
            self.whole = not self._open and len(self._ended) >= self._count
        # Of the class that stands behind this one.
        shown = super()._read(event)  # type: ignore[safe-super]
        self.whole = self.over
        return shown


class UncountedChoices(_Uncounted, Choices):
    """Those of completions."""


class UncountedOutputs(_Uncounted, Outputs):
    """Those of SGLang's own calls."""


def ending_of(call: Call) -> Ending:
    """Ending of the stream that answers a call."""
    api = call.api
    if api is None:
        if call.path == COMPLETIONS and (
            _is_uncounted(call, "prompt", b'["')
            or ("prompt_embeds" in call.body and _is_uncounted(call, "prompt_embeds", b'"'))
        ):
            return UncountedChoices(call)
        return Choices(call)
    if api.kind is not Kind.GENERATES:
        return Unsaid(call)
    if api.shape is Shape.OPENAI:
        return Choices(call)
    if api.shape is Shape.NATIVE:
        if (
            _is_uncounted(call, "input_ids", b"[")
            or _is_uncounted(call, "text", b'"')
            or (_are_several_embeds(call) and _is_uncounted(call, "input_embeds", b"["))
        ):
            return UncountedOutputs(call)
        return Outputs(call)
    return Response(call) if api.shape is Shape.RESPONSES else Message(call)


def _going_on(event: bytes) -> bytes:
    """The end of an event whose one choice has no finish_reason yet, from that on; empty for others.

    In a text, backslashes stand before the quotes.
    """
    at = event.find(_REASON)
    after = at + len(_REASON)
    if at < 0 or not event.startswith(_NONE_YET, after) or event.find(_REASON, after) >= 0:
        return b""
    return event[at:]


def choices_of(call: Call) -> int:
    """Number of choices that must end; at least one."""
    asked = 1
    if "n" in call.body:
        asked = count_of(call.value("n")) or 1
    if call.path == GENERATE:
        asked = count_of(value(sampling_of(call), "n")) or 1
    elif call.path == COMPLETIONS:
        prompts = _listed(call, "prompt", b'["')
        if "prompt_embeds" in call.body:
            prompts = _with_embeds(call, prompts)
        asked *= max(1, prompts)
    return asked


def _with_embeds(call: Call, prompts: int) -> int:
    """All prompts of a completion, of which the listed ones are counted: embeddings come on top of those."""
    if is_nothing(call.body.get("prompt_embeds")):
        return prompts
    embeds = max(1, _listed(call, "prompt_embeds", b'"'))
    return embeds if is_nothing(call.body.get("prompt")) else embeds + max(1, prompts)


def outputs_of(call: Call) -> int:
    """The same of SGLang's own calls: so many of each prompt. What cannot be read here is for the engine to refuse."""
    prompts = max(1, _listed(call, "input_ids", b"["), _listed(call, "text", b'"'))
    if _are_several_embeds(call):
        prompts = max(prompts, _listed(call, "input_embeds", b"["))
    sampling = call.body.get(SAMPLING)
    if sampling is None or bytes(memoryview(sampling)[:1]) != b"{":
        # A list has one for each prompt, and each of them asks for as many: those that begin tell.
        return prompts
    try:
        return prompts * (count_of(value(object_in(call.body, SAMPLING), "n")) or 1)
    except BadRequest:
        return prompts


def _listed(call: Call, name: str, begins: bytes) -> int:
    """How many prompts there are in a list of them, of which each begins with one of `begins`; 0 if it is none."""
    raw = call.body.get(name)
    # One list of ids can be long, and so can a text.
    if raw is None or _is_long(raw) or not _is_list_of(raw, begins):
        return 0
    try:
        return len(_read_list(raw))
    except UNREADABLE:
        return 0


def _is_uncounted(call: Call, name: str, begins: bytes) -> bool:
    """Whether it is such a list, and too long to be counted."""
    raw = call.body.get(name)
    return raw is not None and _is_long(raw) and _is_list_of(raw, begins)


def _are_several_embeds(call: Call) -> bool:
    """Whether SGLang's embeddings are a list of prompts: one alone is a list of vectors."""
    raw = call.body.get("input_embeds")
    return raw is not None and _LIST_OF_PROMPTS(memoryview(raw)) is not None


def _is_long(raw: Raw) -> bool:
    if len(raw) <= FEW_PROMPTS_BYTES:
        return False
    return len(raw) > MOST_PROMPTS_BYTES or bytes(raw).count(b",") > MOST_COMMAS


def _is_list_of(raw: Raw, begins: bytes) -> bool:
    first = first_in_list(raw)
    return bool(first) and first in begins


def _named(event: bytes) -> tuple[bytes, bytes, Event | None]:
    """The name of an event, or the type that its payload has; its payload; and that, if it was read for it."""
    data = sse.payload(event)
    for line in event.splitlines():
        if line.startswith(b"event:"):
            return line[6:].strip(), data, None
    if data == b"[DONE]":
        return data, data, None
    known = _read_event(data)
    kind = said(known.type)
    return (kind.encode() if isinstance(kind, str) else b""), data, known


def _read_event(data: bytes) -> Event:
    try:
        return read_event(data)
    except UNREADABLE:
        return Event()
