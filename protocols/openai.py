"""OpenAI-shaped answers, as far as the gateway reads them: as little as it must.

Source: OpenAI API reference, "Chat completions" and "Completions"; vLLM 0.32.0,
entrypoints/openai (finish_reason "abort" for a request that the engine gave up).
"""

import re
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from pdgate.protocols import sse
from pdgate.protocols.call import Raw
from pdgate.protocols.chunks import (
    GAVE_UP,
    LARGE_BYTES,
    Ended,
    LenientEnded,
    WithChoices,
    is_recomputed,
    names_recomputed,
    read_chunk,
    read_whole,
)
from pdgate.protocols.errors import EngineBusy, EngineFailed, EngineGaveUp, EngineRejected
from pdgate.protocols.fields import UNREADABLE
from pdgate.protocols.internal import lenient

_ABORTED = re.compile(rb'"finish_reason"\s*:\s*"(?:abort|error)"')
_ERROR = re.compile(rb'^data: ?(\{\s*"(?:error"|object"\s*:\s*"error").*)', re.MULTILINE)
_text = re.compile(rb'"(?:content|text|reasoning|reasoning_content)"\s*:\s*"[^"]').search
_USUAL_TEXT: Final = b'"content":"'
"""As vLLM writes it; to look for it takes a tenth of the expression."""


_read_found: Final = msgspec.json.Decoder(dict[str, Raw] | list[Raw]).decode


def raise_unless_found(answer: bytes, *, at: str) -> None:
    """`answer`: what an engine found or counted, all of it. Some JSON, and no error."""
    found: Any
    try:
        # Without its values; one that may be an error is short.
        found = msgspec.json.decode(answer) if may_have_failed(answer) else _read_found(answer)
    except msgspec.ValidationError:
        found = None
    except UNREADABLE:
        found = lenient(answer)
    if not found or not isinstance(found, dict | list):
        raise EngineFailed("the engine's answer is not whole", at=at)
    if isinstance(found, dict) and (found.get("error") or found.get("object") == "error"):
        _raise_error(found, answer, at)


def raise_unless_whole(
    answer: bytes, *, at: str, stop: object = None, choices: int = 1
) -> Raw | None:
    """`answer`: all of one that is no stream. Each of its `choices` says why it ended. `stop`: the call's.

    Returns its usage, if it was read on the way: empty for none.
    """
    try:
        whole = read_whole(answer)
        found: Sequence[Ended | LenientEnded] = whole.choices
        usage: Raw | None = whole.usage
    except msgspec.ValidationError:
        raise EngineFailed("the engine's answer has no choices", at=at) from None
    except UNREADABLE:
        found, usage = _lenient(answer, at=at), None
    ended = len(found) >= choices
    for choice in found:
        reason = choice.finish_reason
        if reason in GAVE_UP:
            raise EngineGaveUp("the engine gave the call up", at=at)
        if reason and is_recomputed(choice.stop_reason) and not names_recomputed(stop):
            raise EngineBusy("the engine had no room to finish the call", at=at)
        ended = ended and bool(reason)
    if not ended:
        raise EngineFailed("the engine's answer does not say why it ended", at=at)
    return usage


def _lenient(answer: bytes, *, at: str) -> Sequence[Ended | LenientEnded]:
    """The choices of what Python's json accepts beyond the standard, as some engines write with it."""
    try:
        return msgspec.convert(lenient(answer), WithChoices).choices
    except msgspec.ValidationError:
        raise EngineFailed("the engine's answer is not whole", at=at) from None


def may_have_failed(events: bytes) -> bool:
    """Whether it is worth asking of them what the next two ask."""
    # Not `in`, which takes the bytes for a number first, and an exception to find that they are none.
    return events.find(b'"error"') >= 0 or events.find(b'"abort"') >= 0


def begins_well(first: bytes) -> bool:
    """Whether the first bytes of an answer are events that add text, and none of an error."""
    return not (first.startswith(b"{") or says_nothing_yet(first) or may_have_failed(first))


def aborted(events: bytes) -> bool:
    """Whether one of them says that the engine gave the request up."""
    return _ABORTED.search(events) is not None


def says_nothing_yet(first: bytes) -> bool:
    """Whether a stream has not yet shown how the call goes.

    Its first events may name the speaker's role, once for each choice, or count what has been used,
    which engines send whether or not they have computed anything; and so they do with "[DONE]".
    """
    whole = first
    if not first.endswith(b"\n\n"):
        end = max(first.rfind(b"\n\n") + 2, first.rfind(b"\n\r\n") + 3)
        whole = first[:end] if end > 2 else b""
    at = whole.find(_USUAL_TEXT)
    if at >= 0 and not whole.startswith(b'"', at + len(_USUAL_TEXT)):
        return False
    if _text(whole) is not None:
        return False
    if sse.is_crowded(whole):
        return False
    for event in sse.events(whole):
        data = sse.payload(event)
        if not data or data == b"[DONE]":
            continue
        try:
            chunk = read_chunk(data)
        except UNREADABLE:
            # Of some other kind.
            return False
        if chunk.is_error or not all(choice.only_opens for choice in chunk.choices):
            return False
    return True


def raise_stream_error(first: bytes, *, at: str) -> None:
    """Raises what the first events of a good answer say went wrong, if they do.

    vLLM answers 200 and then reports it when a stream fails before its first token; "code"
    is the status that it would have been: EngineRejected for 4xx, else EngineFailed.
    """
    found = _ERROR.search(first)
    if found is None:
        return
    body = found[1].rstrip()
    try:
        event = msgspec.json.decode(body) if len(body) <= LARGE_BYTES else None
    except UNREADABLE:
        raise EngineFailed("the engine's answer began with a broken error", at=at) from None
    _raise_error(event if isinstance(event, dict) else {}, body, at)


def _raise_error(said: dict[str, Any], body: bytes, at: str) -> None:
    error = said.get("error", said)
    code = error.get("code") if isinstance(error, dict) else None
    if isinstance(code, int) and 400 <= code < 500:
        raise EngineRejected(code, [(b"content-type", b"application/json")], body, at=at)
    raise EngineFailed("the engine failed before the first token", at=at)
