"""One client request, read once, never changed.

The body is a JSON object whose values stay the bytes they came as (`Raw`): engines
accept many fields that the gateway does not know, and each has to arrive untouched,
nulls, number formats and key order included. A forwarder builds new bodies from it:

    {**call.body, "kv_transfer_params": {"do_remote_decode": True}}

`encode` writes raw and plain values alike.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from pdgate.protocols.apis import OTHER, Api, Kind
from pdgate.protocols.errors import BadRequest

Json = Mapping[str, Any]
Raw = msgspec.Raw
Headers = Sequence[tuple[bytes, bytes]]

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"

# Good enough to compare loads; only engines know their tokenizer.
BYTES_PER_TOKEN = 4

TOO_DEEP = "the request body is nested too deeply"

_object = msgspec.json.Decoder(dict[str, Raw])
_any = msgspec.json.Decoder()
encode = msgspec.json.encode


def parse_object(data: bytes) -> dict[str, Raw]:
    """The fields of a JSON object, each still encoded. Raises BadRequest."""
    try:
        if not data.isascii():
            # The decoder does not look into values, and what is no UTF-8 fails later.
            data.decode()
        return _object.decode(data)
    except UnicodeDecodeError:
        return _lenient(data)
    except msgspec.ValidationError:
        raise BadRequest("the request body must be a JSON object") from None
    except RecursionError:
        raise BadRequest(TOO_DEEP) from None
    except msgspec.DecodeError:
        return _lenient(data)


def _lenient(data: bytes) -> dict[str, Raw]:
    """What Python's json accepts beyond the standard, as the engines read with it.

    That is NaN and Infinity, lone surrogates, a byte order mark, UTF-16 and UTF-32.
    """
    try:
        fields = json.loads(data)
        if not isinstance(fields, dict):
            raise BadRequest("the request body must be a JSON object")
        # Values keep a lone surrogate escaped, but a name must be text that can be written.
        "".join(fields).encode()
    except RecursionError:
        raise BadRequest(TOO_DEEP) from None
    except ValueError as error:
        raise BadRequest(f"the request body is not valid JSON: {error}") from None
    return {name: Raw(json.dumps(value).encode()) for name, value in fields.items()}


def value(fields: Json, name: str, default: Any = None) -> Any:
    """One field, decoded; `default` if it is missing or null. Raises BadRequest."""
    found = fields.get(name)
    if found is None:
        return default
    if isinstance(found, Raw):
        try:
            found = _any.decode(found)
        except msgspec.DecodeError:
            found = _lenient_value(found)
        except RecursionError:
            # It passed as raw JSON, but here the stack is deeper.
            raise BadRequest(TOO_DEEP) from None
    return default if found is None else found


def _lenient_value(raw: Raw) -> Any:
    try:
        return json.loads(bytes(raw))
    except RecursionError:
        raise BadRequest(TOO_DEEP) from None


class Passed(msgspec.Struct, frozen=True):
    """A request that goes to an engine as it came, and need not be a POST of JSON."""

    method: str
    body: bytes = b""
    content_type: bytes = b"application/octet-stream"


class Call(msgspec.Struct, frozen=True):
    """What a client asked for.

    Attributes:
        id: What the client sees as x-request-id: its own, or one of ours.
        attempt_id: What both engines see as X-Request-Id; a retry gets a fresh one.
        path: CHAT, COMPLETIONS, or that of `api`; with its query, if it is `passed`.
        body: The fields as the client sent them.
        headers: Those of the client's that engines get, names in lower case.
        model: None when the client named none.
        prompt_tokens: Estimated from the body's size.
        blocks: Hashes of its prompt's beginnings; None until somebody asks
            (scheduling/prefix/blocks.py).
        api: What its route is, if it is none of the two.
        at: The id of the only engine that can serve it; empty for any.
        passed: What to send instead of the body.
    """

    id: str
    attempt_id: str
    path: str
    body: Json
    headers: Headers = ()
    model: str | None = None
    streams: bool = False
    prompt_tokens: int = 0
    method: str = "POST"
    blocks: Sequence[int] | None = None
    api: Api | None = None
    at: str = ""
    passed: Passed | None = None

    @property
    def route(self) -> str:
        """Its path as it is counted: one of those that the gateway knows, or OTHER."""
        api = self.api
        if api is None:
            return self.path
        return OTHER if api.kind is Kind.PASSES else api.path

    def value(self, name: str, default: Any = None) -> Any:
        return value(self.body, name, default)

    def retried(self, attempt_id: str) -> "Call":
        return msgspec.structs.replace(self, attempt_id=attempt_id)
