"""What the gateway reads of OpenAI-shaped answers: as little as it must.

Source: OpenAI API reference, "Chat completions" and "Completions"; vLLM 0.32.0,
entrypoints/openai (finish_reason "abort" for a request that the engine gave up).
"""

import re

import msgspec

from pdgate.protocols.call import Json, value
from pdgate.protocols.errors import EngineFailed, EngineRejected

_ABORTED = re.compile(rb'"finish_reason"\s*:\s*"abort"')
_OPENING = re.compile(rb'"delta"\s*:\s*\{[^{}]*"role"[^{}]*"content"\s*:\s*(""|null)[^{}]*\}')


def aborted(piece: bytes) -> bool:
    """Whether these bytes of an answer say that the engine gave the request up."""
    return b'"abort"' in piece and _ABORTED.search(piece) is not None


def finish_reason(reply: Json) -> str | None:
    """Of the first choice of a complete answer."""
    choices = value(reply, "choices")
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        return None
    reason = choices[0].get("finish_reason")
    return reason if isinstance(reason, str) else None


def only_says_role(first: bytes) -> bool:
    """Whether a chat stream has brought no more than its opening chunk so far.

    Engines send it before they know whether the call goes well.
    """
    return first.count(b"\n\n") <= 1 and _OPENING.search(first) is not None


def raise_stream_error(first: bytes, *, at: str) -> None:
    """Raises what the first event of a good answer says went wrong, if it does.

    vLLM answers 200 and then says so when a stream fails before its first token; "code"
    is the status that it would have been: EngineRejected for 4xx, else EngineFailed.
    """
    if not first.startswith((b'data: {"error"', b'data: {"object":"error"')):
        return
    body = first[len(b"data: ") :].split(b"\n", 1)[0].rstrip()
    try:
        event = msgspec.json.decode(body)
    except msgspec.DecodeError:
        raise EngineFailed("the engine's answer began with a broken error", at=at) from None
    error = event.get("error", event)
    code = error.get("code") if isinstance(error, dict) else None
    if isinstance(code, int) and 400 <= code < 500:
        raise EngineRejected(code, [(b"content-type", b"application/json")], body, at=at)
    raise EngineFailed("the engine failed before the first token", at=at)
