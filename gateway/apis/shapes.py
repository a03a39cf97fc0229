"""Errors in the words of each API: as the body of a response, and as the last event of a stream.

    openai      {"error": {"message", "type", "param", "code"}}      data: ..., and no [DONE]: that
                                              would say that the answer is whole
    responses   the same                      event: error, with the fields at the top as well:
                                              the reference has them there, and OpenAI's clients
                                              look for "error"
    anthropic   {"type": "error", "error": {"type", "message"}}      event: error

Source: OpenAI API reference, "Error codes" and "Responses: streaming events"; Anthropic API
reference, "Errors" and "Streaming messages"; openai-python 3.54, _streaming.py.
"""

import re
from typing import Any, Final

import msgspec

from pdgate.protocols import sse
from pdgate.protocols.apis import Shape
from pdgate.protocols.call import encode
from pdgate.protocols.errors import GatewayError
from pdgate.protocols.fields import UNREADABLE

_TYPES: Final = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
"""Anthropic's, by status; what is not here is the client's (4xx) or ours."""

# No more digits than a number of events can have: Python reads only so many (4,300).
_NUMBER = re.compile(rb'"sequence_number"\s*:\s*(\d{1,18})(?!\d)')


def body_of(error: GatewayError, shape: Shape) -> bytes:
    if shape is Shape.ANTHROPIC:
        return encode(_anthropic(error.status, str(error)))
    return encode(error.as_openai())


def engines_body(status: int, body: bytes, shape: Shape) -> bytes:
    """What an engine said in JSON, word for word, unless it said it in another API's words.

    vLLM 0.32.0 answers a body that it cannot read as OpenAI does, on all routes.
    """
    if shape is not Shape.ANTHROPIC:
        return body
    try:
        said = msgspec.json.decode(body)
    except UNREADABLE:
        said = None
    if isinstance(said, dict) and said.get("type") == "error":
        return body
    return encode(_anthropic(status, _message(said) or f"the engine answered {status}"))


def event(error: GatewayError, shape: Shape, after: bytes) -> bytes:
    """`after` is the last piece of the stream that went out."""
    if shape is Shape.ANTHROPIC:
        return _named(_anthropic(error.status, str(error)))
    if shape is Shape.RESPONSES:
        said = error.as_openai()["error"]
        numbers = _NUMBER.findall(after)
        return _named(
            {
                "type": "error",
                "code": said["code"] or said["type"],
                "message": said["message"],
                "param": said["param"],
                "sequence_number": int(numbers[-1]) + 1 if numbers else 0,
                "error": said,
            }
        )
    return sse.event(error.as_openai())


def _named(payload: Any) -> bytes:
    return b"event: error\n" + sse.event(payload)


def _anthropic(status: int, message: str) -> dict[str, Any]:
    other = "invalid_request_error" if status < 500 else "api_error"
    return {"type": "error", "error": {"type": _TYPES.get(status, other), "message": message}}


def _message(said: Any) -> str:
    """Of an error in OpenAI's words, or in FastAPI's."""
    if not isinstance(said, dict):
        return ""
    error = said.get("error", said)
    if isinstance(error, str):
        return error
    found = error.get("message") or error.get("detail") if isinstance(error, dict) else None
    return found if isinstance(found, str) else ""
