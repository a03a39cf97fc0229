"""What the gateway reads of OpenAI-shaped answers: as little as it must.

Source: OpenAI API reference, "Chat completions" and "Completions"; vLLM 0.32.0,
entrypoints/openai (finish_reason "abort" for a request that the engine gave up).
"""

import re

import msgspec

from pdgate.protocols.call import Json, Raw
from pdgate.protocols.errors import EngineFailed, EngineRejected

_ABORTED = re.compile(rb'"finish_reason"\s*:\s*"abort"')
_BLANK_LINE = re.compile(rb"\n\r?\n")
_ERROR = re.compile(rb'^data: ?(\{\s*"(?:error"|object"\s*:\s*"error").*)', re.MULTILINE)
_OPENING = re.compile(rb'"delta"\s*:\s*\{[^{}]*"role"[^{}]*"content"\s*:\s*(""|null)[^{}]*\}')


def aborted(piece: bytes) -> bool:
    """Whether these bytes of an answer say that the engine gave the request up."""
    # Not `in`, which takes the bytes for a number first, and an exception to find that they are none.
    return piece.find(b'"abort"') >= 0 and _ABORTED.search(piece) is not None


def gave_up(reply: Json) -> bool:
    """Whether the choices of a complete answer, still raw, say the same."""
    choices = reply.get("choices")
    if not isinstance(choices, Raw):
        return False
    said = bytes(choices)
    return said.find(b'"abort"') >= 0 and _ABORTED.search(said) is not None


def says_nothing_yet(first: bytes, *, chat: bool) -> bool:
    """Whether a stream has not yet told how the call goes.

    That is so before its first event is whole, and while a chat has only been opened:
    engines send the chunk that names the role before they have computed anything.
    """
    events = len(_BLANK_LINE.findall(first))
    return events == 0 or (chat and events == 1 and _OPENING.search(first) is not None)


def raise_stream_error(first: bytes, *, at: str) -> None:
    """Raises what the first events of a good answer say went wrong, if they do.

    vLLM answers 200 and then says so when a stream fails before its first token; "code"
    is the status that it would have been: EngineRejected for 4xx, else EngineFailed.
    """
    found = _ERROR.search(first)
    if found is None:
        return
    body = found[1].rstrip()
    try:
        event = msgspec.json.decode(body)
    except msgspec.DecodeError:
        raise EngineFailed("the engine's answer began with a broken error", at=at) from None
    error = event.get("error", event)
    code = error.get("code") if isinstance(error, dict) else None
    if isinstance(code, int) and 400 <= code < 500:
        raise EngineRejected(code, [(b"content-type", b"application/json")], body, at=at)
    raise EngineFailed("the engine failed before the first token", at=at)
