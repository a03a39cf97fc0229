"""OpenAPI schema of calls: request and answer of each route, and of errors.

Bodies are open: engines accept more fields than are described, and whatever is sent reaches them as it
came. Nothing refers to another place of the schema, so an application that includes the routes
(docs/embedding.md) shows all of it.

Source: OpenAI API reference, "Chat", "Completions", "Responses", "Embeddings"; Anthropic API
reference, "Messages"; vLLM 0.32.0, entrypoints/scale_out/token_in_token_out/protocol.py.
"""

from http import HTTPStatus
from typing import Any, Final

from pdgate.protocols.apis import (
    APIS,
    GENERATE,
    MESSAGES,
    NATIVE,
    RESPONSES,
    SESSION,
    SOUNDS,
    SPEECH,
    Kind,
    Shape,
    shape_of,
)
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
_WHOLE: Final = {"type": ["integer", "null"]}
_NUMBER: Final = {"type": ["number", "null"]}
_IDS: Final = {"type": "array", "items": {"type": "integer", "minimum": 0}}
_FIELDS: Final[dict[str, Any]] = {
    "model": {
        "type": ["string", "null"],
        "description": "May be left out where one model is served.",
    },
    "stream": {"type": ["boolean", "null"], "default": False},
    "max_tokens": _COUNT,
    "n": _COUNT,
    "temperature": _NUMBER,
    "top_p": _NUMBER,
    "stop": {"type": ["string", "array", "null"]},
    "seed": _WHOLE,
    "logprobs": {"type": ["boolean", "integer", "null"]},
    "stream_options": {"type": ["object", "null"]},
}
_NO_SAMPLING: Final = ("model", "stream", "stream_options")
_TOOLS: Final = {
    "tools": {"type": ["array", "null"], "items": {"type": "object"}},
    "tool_choice": {},
}
_MESSAGE: Final[dict[str, Any]] = {
    "type": "object",
    "required": ["role"],
    "properties": {"role": _TEXT, "content": {"type": ["string", "array", "null"]}},
}
_BODIES: Final[dict[str, dict[str, Any]]] = {
    CHAT: {
        "title": "ChatCompletionRequest",
        "type": "object",
        "required": ["messages"],
        "properties": {
            "messages": {"type": "array", "minItems": 1, "items": _MESSAGE},
            "max_completion_tokens": _COUNT,
            "response_format": {"type": ["object", "null"]},
            **_TOOLS,
            **_FIELDS,
        },
    },
    COMPLETIONS: {
        "title": "CompletionRequest",
        "type": "object",
        "required": ["prompt"],
        "properties": {"prompt": {"type": ["string", "array"]}, **_FIELDS},
    },
    GENERATE: {
        "title": "GenerateRequest",
        "type": "object",
        "required": ["token_ids", "sampling_params"],
        "properties": {
            "token_ids": _IDS,
            **{name: _FIELDS[name] for name in _NO_SAMPLING},
            "sampling_params": {
                "type": "object",
                "properties": {n: field for n, field in _FIELDS.items() if n not in _NO_SAMPLING},
            },
        },
    },
}
_HEAD: Final[dict[str, Any]] = {"id": _TEXT, "object": _TEXT, "model": _TEXT}


def _choices(**said: Any) -> dict[str, Any]:
    """Each of an answer's choices: what it says, and why it ended."""
    fields = {"index": {"type": "integer"}, "finish_reason": {"type": ["string", "null"]}, **said}
    return {"type": "array", "items": {"type": "object", "properties": fields}}


def _usage(*names: str) -> dict[str, Any]:
    return {"type": ["object", "null"], "properties": dict.fromkeys(names, _WHOLE)}


_OF_OPENAI: Final = _usage("prompt_tokens", "completion_tokens", "total_tokens")
_ANSWERS: Final[dict[str, dict[str, Any]]] = {
    CHAT: {
        "title": "ChatCompletion",
        "type": "object",
        "properties": {
            **_HEAD,
            "created": _WHOLE,
            "choices": _choices(message={"type": "object", "properties": _MESSAGE["properties"]}),
            "usage": _OF_OPENAI,
        },
    },
    COMPLETIONS: {
        "title": "Completion",
        "type": "object",
        "properties": {
            **_HEAD,
            "created": _WHOLE,
            "choices": _choices(text=_TEXT),
            "usage": _OF_OPENAI,
        },
    },
    GENERATE: {
        "title": "Generated",
        "type": "object",
        "properties": {
            "request_id": _TEXT,
            "choices": _choices(token_ids=_IDS, logprobs={"type": ["object", "null"]}),
            "usage": _OF_OPENAI,
        },
    },
    NATIVE: {"title": "Outputs", "type": ["object", "array"]},
    RESPONSES: {
        "title": "Response",
        "type": "object",
        "properties": {
            **_HEAD,
            "status": _TEXT,
            "output": {"type": "array", "items": {"type": "object"}},
            "usage": _usage("input_tokens", "output_tokens", "total_tokens"),
        },
    },
    MESSAGES: {
        "title": "Message",
        "type": "object",
        "properties": {
            "id": _TEXT,
            "type": _TEXT,
            "role": _TEXT,
            "model": _TEXT,
            "content": {"type": "array", "items": {"type": "object"}},
            "stop_reason": {"type": ["string", "null"]},
            "usage": _usage("input_tokens", "output_tokens"),
        },
    },
    "/v1/embeddings": {
        "title": "Embeddings",
        "type": "object",
        "properties": {
            "object": _TEXT,
            "model": _TEXT,
            "data": {"type": "array", "items": {"type": "object"}},
            "usage": _usage("prompt_tokens", "total_tokens"),
        },
    },
}
"""Path -> a whole answer; a stream's events are pieces of it."""
_REFUSALS: Final = {
    400: "The request is wrong; what an engine says of it comes as it said it",
    401: "An API key is needed",
    403: "The API key may not do this",
    404: "The model does not exist",
    408: "The request took too long to come",
    413: "The body is too large",
    415: "The body is not JSON",
    422: "An engine cannot do what is asked for",
    426: "The route is a WebSocket",
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


_FORM: Final[dict[str, Any]] = {
    "type": "object",
    "required": ["file"],
    "properties": {
        "file": {**_TEXT, "contentMediaType": "application/octet-stream"},
        "model": _FIELDS["model"],
        "language": _TEXT,
        "prompt": _TEXT,
        "response_format": _TEXT,
        "temperature": {"type": "number"},
        "stream": {"type": "boolean"},
    },
}
_SPOKEN: Final[dict[str, Any]] = {
    "type": "object",
    "required": ["input"],
    "properties": {
        "input": _TEXT,
        "model": _FIELDS["model"],
        "voice": {"type": ["string", "object", "null"]},
        "response_format": {"type": ["string", "null"]},
    },
}


def of_sounds(path: str) -> dict[str, Any]:
    """What is said of POST to a route that hears or speaks: its request, and its answers by status."""
    speaks = path == SPEECH
    request, schema = ("application/json", _SPOKEN) if speaks else ("multipart/form-data", _FORM)
    heard: dict[str, Any] = {
        "application/json": {"schema": {"title": "Transcription", "type": "object"}},
        "text/event-stream": {"schema": _TEXT},
        "text/plain": {"schema": _TEXT},
    }
    answer = {
        "description": SOUNDS[path].summary,
        "content": {"audio/*": {}} if speaks else heard,
    }
    return {
        "summary": SOUNDS[path].summary,
        "responses": {
            200: answer,
            **{status: refusal(status) for status in _REFUSALS if status != 426},
        },
        "openapi_extra": {
            "requestBody": {"required": True, "content": {request: {"schema": schema}}}
        },
    }


def of_sessions() -> dict[str, Any]:
    """What is said of the handshake of a realtime session, which is a GET."""
    model = {"name": "model", "in": "query", "required": False, "schema": {**_TEXT}}
    return {
        "summary": SESSION.summary,
        "status_code": HTTPStatus.SWITCHING_PROTOCOLS,
        "response_description": "The session is open: what follows are frames, no HTTP",
        "responses": {status: refusal(status) for status in _REFUSALS},
        "openapi_extra": {"parameters": [model]},
    }


def responses(path: str) -> dict[int | str, dict[str, Any]]:
    """Responses by status, for a route of which POST is a call."""
    answer: dict[str, Any] = {
        "description": "The answer: JSON, or a stream of events if `stream` is true",
        "content": {
            "application/json": {"schema": _ANSWERS.get(path, {"type": "object"})},
            "text/event-stream": {"schema": _TEXT},
        },
    }
    if path in APIS and APIS[path].kind is not Kind.GENERATES:
        answer["description"] = "What the engine found"
        # Scores come as a list from some engines.
        schema = _ANSWERS.get(path, {"type": ["object", "array"]})
        answer["content"] = {"application/json": {"schema": schema}}
    return {
        200: answer,
        **{status: refusal(status, shape_of(path)) for status in _REFUSALS if status != 426},
    }


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
