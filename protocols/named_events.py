"""Streams whose events have names, as /v1/responses and Anthropic's /v1/messages send them.

    event: response.output_text.delta        event: content_block_delta
    data: {"type": ..., ...}                 data: {"type": ..., ...}

They have no "data: [DONE]": the last event is response.completed (failed, incomplete), or
message_stop. What goes wrong on the way is an event of the name error.

Source: OpenAI API reference, "Responses: streaming events"; Anthropic API reference, "Streaming
messages"; vLLM 0.32.0, entrypoints/openai/responses/serving.py, anthropic/serving.py.
"""

import json
import re
from typing import Any, Final

import msgspec

from pdgate.protocols.apis import MESSAGES, RESPONSES
from pdgate.protocols.call import Json, Raw, value
from pdgate.protocols.chunks import LARGE_BYTES, End, is_said, read_end
from pdgate.protocols.errors import EngineFailed, EngineGaveUp, EngineRejected
from pdgate.protocols.fields import UNREADABLE
from pdgate.protocols.internal import lenient

# Sent before the engine has computed anything.
_OPENING: Final = re.compile(
    rb"^(?:event: ?(?:response\.(?:created|queued|in_progress)|message_start|ping)|:.*)\r?$",
    re.MULTILINE,
)
_BLANK_LINE: Final = re.compile(rb"\n\r?\n")
_ERROR: Final = re.compile(rb"^event: ?(?:error|response\.failed)\r?\ndata: ?(.*)", re.MULTILINE)


def says_nothing_yet(first: bytes) -> bool:
    """Whether a stream has not yet shown how the call goes: it has only been opened."""
    return len(_BLANK_LINE.findall(first)) <= len(_OPENING.findall(first))


def raise_stream_error(first: bytes, *, at: str) -> None:
    """Raises what the first events of a good answer say went wrong, if they do.

    EngineRejected where the client is at fault, else EngineFailed.
    """
    found = _ERROR.search(first)
    if found is None:
        return
    body = found[1].rstrip()
    try:
        event = msgspec.json.decode(body) if len(body) <= LARGE_BYTES else None
    except UNREADABLE:
        raise EngineFailed("the engine's answer began with a broken error", at=at) from None
    if _is_clients(event):
        raise EngineRejected(400, [(b"content-type", b"application/json")], body, at=at)
    raise EngineFailed("the engine failed before the first token", at=at)


def raise_unless_whole(path: str, answer: bytes, *, at: str, later: bool = False) -> None:
    """`answer`: all of one that is no stream. It says why it ended, or is to be asked for `later`.

    vLLM says that it ended a request by itself with the status of the response; a message just has
    no reason why it ends.
    """
    try:
        end = read_end(answer)
    except UNREADABLE:
        found = lenient(answer)
        if not isinstance(found, dict):
            raise EngineFailed("the engine's answer is not whole", at=at) from None
        end = _end_of(found)
    if path == RESPONSES:
        gave_up = end.gave_up or not is_said(end.status) or (end.is_under_way and not later)
    else:
        # Some engines write "" where others write null.
        gave_up = path == MESSAGES and not is_said(end.stop_reason)
    if gave_up:
        raise EngineGaveUp("the engine gave the call up", at=at)


def _end_of(found: dict[str, Any]) -> End:
    """Of what was not raw."""
    fields = ("status", "stop_reason", "usage", "output")
    return End(*(Raw(json.dumps(found.get(name)).encode()) for name in fields))


def reply_gave_up(reply: Json) -> bool:
    """The same of what a prefill engine answered, still raw."""
    return isinstance(reply.get("status"), Raw) and value(reply, "status") == "cancelled"


def _is_clients(event: Any) -> bool:
    if not isinstance(event, dict):
        return False
    error = event.get("error", event)
    if not isinstance(error, dict):
        return False
    code = error.get("code")
    is_4xx = isinstance(code, int) and 400 <= code < 500
    return is_4xx or error.get("type") == "invalid_request_error"
