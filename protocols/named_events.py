"""Streams whose events have names, as /v1/responses and Anthropic's /v1/messages send them.

    event: response.output_text.delta        event: content_block_delta
    data: {"type": ..., ...}                 data: {"type": ..., ...}

They have no "data: [DONE]": the last event is response.completed (failed, incomplete), or
message_stop. What goes wrong on the way is an event of the name error.

Source: OpenAI API reference, "Responses: streaming events"; Anthropic API reference, "Streaming
messages"; vLLM 0.32.0, entrypoints/openai/responses/serving.py, anthropic/serving.py.
"""

import re
from typing import Any, Final

import msgspec

from pdgate.protocols.apis import MESSAGES, RESPONSES
from pdgate.protocols.call import Json, Raw, value
from pdgate.protocols.errors import EngineFailed, EngineRejected

# Sent before the engine has computed anything.
_OPENING: Final = re.compile(
    rb"^(?:event: ?(?:response\.(?:created|queued|in_progress)|message_start|ping)|:.*)\r?$",
    re.MULTILINE,
)
_BLANK_LINE: Final = re.compile(rb"\n\r?\n")
_ERROR: Final = re.compile(rb"^event: ?(?:error|response\.failed)\r?\ndata: ?(.*)", re.MULTILINE)
_CANCELLED: Final = re.compile(rb'"status"\s*:\s*"cancelled"')


def says_nothing_yet(first: bytes) -> bool:
    """Whether a stream has not yet told how the call goes: it has only been opened."""
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
        event = msgspec.json.decode(body)
    except msgspec.DecodeError:
        raise EngineFailed("the engine's answer began with a broken error", at=at) from None
    if _is_clients(event):
        raise EngineRejected(400, [(b"content-type", b"application/json")], body, at=at)
    raise EngineFailed("the engine failed before the first token", at=at)


def gave_up(path: str, answer: bytes) -> bool:
    """Whether a whole answer says that the engine ended the request by itself.

    vLLM says so with the status of the response; a message just has no reason why it ends.
    """
    if path == RESPONSES:
        return b'"cancelled"' in answer and _is_cancelled(answer)
    return path == MESSAGES and b'"stop_reason"' not in answer


def _is_cancelled(answer: bytes) -> bool:
    if _CANCELLED.search(answer) is None:
        return False
    try:
        return bool(msgspec.json.decode(answer).get("status") == "cancelled")
    except (msgspec.DecodeError, AttributeError):
        return False


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
