"""Call: one client request, read once, never changed.

The body is a JSON object whose values stay the bytes they came as (`Raw`): engines
accept many fields that the gateway does not know, and each has to arrive untouched,
nulls, number formats and key order included. A forwarder builds new bodies from it:

    {**call.body, "kv_transfer_params": {"do_remote_decode": True}}

`encode` writes raw and plain values alike.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from pdgate.protocols.apis import OTHER, Api, Kind
from pdgate.protocols.fields import (
    MOST_VALUE_BYTES,
    TOO_DEEP,
    Json,
    Raw,
    encode,
    parse_object,
    value,
)

__all__ = [
    "BYTES_PER_TOKEN",
    "CHAT",
    "COMPLETIONS",
    "TOO_DEEP",
    "Call",
    "Headers",
    "Json",
    "Passed",
    "Raw",
    "encode",
    "parse_object",
    "value",
]

Headers = Sequence[tuple[bytes, bytes]]

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"

# Good enough to compare loads; only engines know their tokenizer.
BYTES_PER_TOKEN = 4


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
        prompt_tokens: Estimated from the body's size; of media in it each counts as so many (inline_media.py).
        has_media: That was so.
        blocks: Hashes of its prompt's beginnings; None until first asked for
            (scheduling/prefix/index.py).
        api: What its route is, if it is none of the two.
        at: The id of the only engine that can serve it; empty for any.
        passed: What to send instead of the body.
        shared: The model that the client asked for, where calls for it are shared among others.
        waited_seconds: In the gateway, before it began.
    """

    id: str
    attempt_id: str
    path: str
    body: Json
    headers: Headers = ()
    model: str | None = None
    streams: bool = False
    prompt_tokens: int = 0
    has_media: bool = False
    method: str = "POST"
    blocks: Sequence[int] | None = None
    api: Api | None = None
    at: str = ""
    passed: Passed | None = None
    shared: str | None = None
    waited_seconds: float = 0.0

    @property
    def route(self) -> str:
        """Its path as it is counted: one of those that the gateway knows, or OTHER."""
        api = self.api
        if api is None:
            return self.path
        return OTHER if api.kind is Kind.PASSES else api.path

    @property
    def may_be_repeated(self) -> bool:
        """Whether an engine may get it again that may have read it: one of an unknown route may do twice what it does."""
        api = self.api
        return api is None or api.kind is not Kind.PASSES or self.method == "GET"

    def value(self, name: str, default: Any = None, most_bytes: int = MOST_VALUE_BYTES) -> Any:
        """Raises BadRequest, also for a value that is longer."""
        return value(self.body, name, default, most_bytes)

    def retried(self, attempt_id: str) -> "Call":
        return msgspec.structs.replace(self, attempt_id=attempt_id)

    def begun(self, waited_seconds: float) -> "Call":
        """The same call, for a policy: it has waited so long, and has the rest of its time."""
        return msgspec.structs.replace(self, waited_seconds=waited_seconds)
