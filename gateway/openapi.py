"""OpenAPI schema of the routes that the framework never sees, and of errors.

Only what the gateway itself reads is described: engines accept many more fields, and whatever is
sent reaches them as it came. So bodies are open, and an answer is whatever the engine's schema
makes it.
"""

from typing import Any, Final

from pdgate.protocols.apis import APIS, Kind, Shape, shape_of
from pdgate.protocols.call import CHAT, COMPLETIONS

_TEXT: Final = {"type": "string"}
_COUNT: Final = {"type": ["integer", "null"], "minimum": 1}

ERROR: Final[dict[str, Any]] = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message"],
            "properties": {
                "message": _TEXT,
                "type": {"type": ["string", "null"]},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "integer", "null"]},
            },
        }
    },
}
MESSAGE_ERROR: Final[dict[str, Any]] = {
    "type": "object",
    "required": ["type", "error"],
    "properties": {
        "type": {"const": "error"},
        "error": {
            "type": "object",
            "required": ["type", "message"],
            "properties": {"type": _TEXT, "message": _TEXT},
        },
    },
}
_FIELDS: Final[dict[str, Any]] = {
    "model": {
        "type": ["string", "null"],
        "description": "May be left out where one model is served.",
    },
    "stream": {"type": ["boolean", "null"], "default": False},
    "max_tokens": _COUNT,
    "n": _COUNT,
}
_MESSAGE: Final[dict[str, Any]] = {
    "type": "object",
    "required": ["role"],
    "properties": {"role": _TEXT, "content": {"type": ["string", "array", "null"]}},
}
_BODIES: Final[dict[str, dict[str, Any]]] = {
    CHAT: {
        "type": "object",
        "required": ["messages"],
        "properties": {"messages": {"type": "array", "minItems": 1, "items": _MESSAGE}, **_FIELDS},
    },
    COMPLETIONS: {
        "type": "object",
        "required": ["prompt"],
        "properties": {"prompt": {"type": ["string", "array"]}, **_FIELDS},
    },
}
_REFUSALS: Final = {
    400: "The request is wrong; what an engine says of it comes as it said it",
    401: "An API key is needed",
    403: "The API key may not do this",
    404: "The model does not exist",
    408: "The request took too long to come",
    413: "The body is too large",
    415: "The body is not JSON",
    422: "An engine cannot do what is asked for",
    429: "Too many calls; Retry-After says when to come again",
    500: "A bug of the gateway",
    501: "No engine here can do this",
    502: "The engines failed, and so did those that were tried instead",
    503: "No engine is there, or all are busy",
    504: "The engines took too long",
}


def operation(path: str) -> dict[str, Any]:
    """What is said of POST to this path, beyond what the framework knows."""
    return {
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": _BODIES.get(path) or _body_of(path)}},
        }
    }


def responses(path: str) -> dict[int | str, dict[str, Any]]:
    """By status, for a route of which POST is a call."""
    answer: dict[str, Any] = {
        "description": "The answer: JSON, or a stream of events if `stream` is true",
        "content": {
            "application/json": {"schema": {"type": "object"}},
            "text/event-stream": {"schema": _TEXT},
        },
    }
    if path in APIS and APIS[path].kind is not Kind.GENERATES:
        answer["description"] = "What the engine found"
        # Scores come as a list from some engines.
        answer["content"] = {"application/json": {"schema": {"type": ["object", "array"]}}}
    return {200: answer, **{status: refusal(status, shape_of(path)) for status in _REFUSALS}}


def refusal(status: int, shape: Shape = Shape.OPENAI) -> dict[str, Any]:
    error = MESSAGE_ERROR if shape is Shape.ANTHROPIC else ERROR
    return {
        "description": _REFUSALS[status],
        "content": {"application/json": {"schema": error}},
    }


def _body_of(path: str) -> dict[str, Any]:
    """Open, as the engine judges it; but what it cannot do without is named."""
    api = APIS[path]
    fields: dict[str, Any] = {name: {} for name in api.required}
    streams = ("model", "stream") if api.kind is Kind.GENERATES else ("model",)
    fields |= {name: _FIELDS[name] for name in streams}
    return {"type": "object", "required": list(api.required), "properties": fields}
