"""Fields read of an answer, to know whether it is whole, and of a chunk. All else passes unread.

What an engine writes into a field may be megabytes of lists, which take 70 ms a MiB. So what is asked of a field
is asked of a short one (`said`), and a long document with more choices than an answer has is not read.
"""

from typing import Any, Final

import msgspec

from pdgate.protocols.fields import UNREADABLE, Raw
from pdgate.protocols.many_fields import has_too_many_containers

GAVE_UP = ("abort", "error")
"""finish_reason of a request that the engine did not finish.

Source: vLLM 0.32.0, v1/engine/__init__.py, FinishReason.
"""


RECOMPUTED: Final = "recomputed"
"""stop_reason beside the finish_reason "stop": the engine had no room for the call's KV and let it go unfinished.

Source: vllm-ascend at 182b75e, vllm_ascend/core/recompute_scheduler.py, RecomputeScheduler._add_recomputed_outputs;
its proxy asks again (examples/disaggregated_prefill_v1/load_balance_proxy_layerwise_server_example.py).
"""


MOST_BYTES: Final = 16 << 10
"""Of a field that is read: reasons, errors and usages have a hundred."""
LARGE_BYTES: Final = 256 << 10
"""Of a document whose choices are counted before they are read."""
MOST_CHOICES: Final = 50_000
"""Of such a one; they take 0.2 us each."""

MOST_DECODED_BYTES: Final = 4 << 20
"""Of a document that is decoded whole: ids of a long prompt."""
MOST_CONTAINERS: Final = 20_000

_any = msgspec.json.Decoder().decode
_NOTHING: Final = (b"", b"null")


def said(raw: Raw) -> Any:
    """What a field says; None where it is missing, or so long that it says nothing that is known here."""
    if not 0 < len(raw) <= MOST_BYTES:
        return None
    try:
        return _any(raw)
    except UNREADABLE:
        return None


def is_said(raw: Raw) -> bool:
    """Whether a field is there and is neither null nor empty."""
    return len(raw) > MOST_BYTES or bool(said(raw))


def is_there(raw: Raw) -> bool:
    """Whether a field is there and is not null."""
    return len(raw) > len(b"null") or bytes(raw) not in _NOTHING


def has_too_many_choices(document: bytes, field: bytes, most: int = MOST_CHOICES) -> bool:
    """Whether a long document has more; each choice that is read has this field, in quotes, and letters may be escaped."""
    if len(document) <= LARGE_BYTES:
        return False
    found = document.count(field) + document.count(b"\\u006") + document.count(b"\\u007")
    return found > most


def is_costly(document: bytes) -> bool:
    """Whether to decode all of it takes too long: numbers and texts take 5 ms a MiB, lists and objects 70."""
    return len(document) > LARGE_BYTES and (
        len(document) > MOST_DECODED_BYTES
        or document.count(b"[") + document.count(b"{") > MOST_CONTAINERS
    )


_RECOMPUTED: Final = msgspec.json.encode(RECOMPUTED)


def is_recomputed(stop_reason: object) -> bool:
    """Whether it says so, raw or not; a stop string of the call is repeated as the reason, too (`names_recomputed`)."""
    if isinstance(stop_reason, Raw):
        return len(stop_reason) == len(_RECOMPUTED) and bytes(stop_reason) == _RECOMPUTED
    return stop_reason == RECOMPUTED


def names_recomputed(stop: object) -> bool:
    """Whether the call's own `stop`, raw or not, has that word."""
    return stop is not None and RECOMPUTED.encode() in (
        bytes(stop) if isinstance(stop, Raw) else msgspec.json.encode(stop)
    )


class Choice(msgspec.Struct):
    index: int = 0
    delta: Raw = Raw()
    finish_reason: str | None = None

    @property
    def only_opens(self) -> bool:
        """Whether it names the speaker's role, and no more."""
        delta = said(self.delta)
        if self.finish_reason is not None or not isinstance(delta, dict) or not delta.get("role"):
            return False
        return not any(found for name, found in delta.items() if name != "role")


class Chunk(msgspec.Struct):
    """
    Attributes:
        error: An engine's last word, in place of all else.
        object: "error" where an older engine reports one.
    """

    choices: list[Choice] = []
    error: Raw = Raw()
    object: Raw = Raw()

    @property
    def is_error(self) -> bool:
        return is_said(self.error) or said(self.object) == "error"


class _IndexedChoice(Choice):
    index: int


class _LongOpening(Chunk):
    choices: list[_IndexedChoice] = []  # type: ignore[assignment]


class Ended(msgspec.Struct):
    index: int = 0
    finish_reason: str | None = None
    stop_reason: Raw = Raw()


class Indexed(msgspec.Struct):
    """`Ended` in a long chunk, where one without an index would not be counted."""

    index: int
    finish_reason: str | None = None
    stop_reason: Raw = Raw()


class Reasoned(msgspec.Struct):
    """`Ended` in a long answer, where one without a reason would not be counted, and has not ended."""

    finish_reason: str | None
    index: int = 0
    stop_reason: Raw = Raw()


class EndingChunk(msgspec.Struct):
    """A chunk without what its choices say: to skip that takes a third of reading it."""

    choices: list[Ended] = []
    error: Raw = Raw()
    object: Raw = Raw()

    @property
    def is_error(self) -> bool:
        return is_said(self.error) or said(self.object) == "error"


class _LongChunk(EndingChunk):
    choices: list[Indexed] = []  # type: ignore[assignment]


class Whole(msgspec.Struct):
    """An answer that is no stream; every one has its choices.

    Attributes:
        usage: As it was written, for `usage.counts_in`; empty for none.
    """

    choices: list[Ended]
    usage: Raw = Raw()


class _LongWhole(Whole):
    choices: list[Reasoned]  # type: ignore[assignment]


class LenientEnded(msgspec.Struct):
    """`Ended`, of what was not raw."""

    index: int = 0
    finish_reason: str | None = None
    stop_reason: Any = None


class WithChoices(msgspec.Struct):
    """The part of `Whole` that need not be raw."""

    choices: list[LenientEnded]


class End(msgspec.Struct):
    """What a response and a message say of their end, where neither is a stream."""

    status: Raw = Raw()
    stop_reason: Raw = Raw()
    usage: Raw = Raw()
    output: Raw = Raw()

    @property
    def is_under_way(self) -> bool:
        """Whether the response runs in the background."""
        return said(self.status) in ("queued", "in_progress")

    @property
    def gave_up(self) -> bool:
        """Whether the engine ended a response by itself: by status, or with no token generated."""
        status = said(self.status)
        if status in ("cancelled", "failed") or (status is None and is_there(self.status)):
            # Or by none that is known.
            return True
        if self.is_under_way:
            return False
        usage = said(self.usage)
        return (
            isinstance(usage, dict) and usage.get("output_tokens") == 0 and not is_said(self.output)
        )


class Event(msgspec.Struct):
    """The payload of an event that has a type.

    Attributes:
        type: Its name, where it has none beside it.
        response: Of an event that repeats it.
        delta, usage: Of the end of a message.
    """

    type: Raw = Raw()
    response: End | None = None
    delta: Raw = Raw()
    usage: Raw = Raw()


_read_end = msgspec.json.Decoder(End).decode
read_event = msgspec.json.Decoder(Event).decode
_read_chunk = msgspec.json.Decoder(Chunk).decode
_read_long_opening = msgspec.json.Decoder(_LongOpening).decode
_read_ending_chunk = msgspec.json.Decoder(EndingChunk).decode
_read_long_chunk = msgspec.json.Decoder(_LongChunk).decode
_read_whole = msgspec.json.Decoder(Whole).decode
_read_long_whole = msgspec.json.Decoder(_LongWhole).decode


class TooManyChoices(msgspec.ValidationError):
    """More than any answer has, or more of something else."""


def read_chunk(data: bytes) -> Chunk:
    """Raises msgspec.DecodeError; TooManyChoices, which is one."""
    if len(data) <= LARGE_BYTES:
        return _read_chunk(data)
    if has_too_many_choices(data, b'"index"'):
        raise TooManyChoices
    return _read_long_opening(data)


def read_ending_chunk(data: bytes) -> EndingChunk:
    """Raises msgspec.DecodeError; TooManyChoices, which is one."""
    if len(data) <= LARGE_BYTES:
        return _read_ending_chunk(data)
    if has_too_many_choices(data, b'"index"'):
        raise TooManyChoices
    return _read_long_chunk(data)


def read_whole(document: bytes) -> Whole:
    """Raises msgspec.DecodeError; TooManyChoices, which is one."""
    if len(document) <= LARGE_BYTES:
        return _read_whole(document)
    if has_too_many_choices(document, b'"finish_reason"') or has_too_many_containers(document):
        raise TooManyChoices
    return _read_long_whole(document)


def read_end(document: bytes) -> End:
    """Raises msgspec.DecodeError; TooManyChoices, which is one."""
    if has_too_many_containers(document):
        raise TooManyChoices
    return _read_end(document)
