"""Requests that go to one engine as they came, whatever is in them.

    GET  /v1/responses/{id}, POST .../cancel    to the engine that keeps the response
    POST /v1/audio/...                          to a plain engine of the model
    the rest of /v1/responses/{id}              the same, with `passthrough`
    any other /v1/... that is not known here    with `passthrough`: to an engine of the model that
                                                is named in a JSON body, a form or the query

The body is read as far as that needs, and for what would let a client say which peer an engine
dials. Of the headers those pass that pass for all calls. What the gateway has itself never passes,
nor does what changes one engine of several (NEVER). Of a key for certain models, all models that
are named anywhere have to be one (restricted.py).
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote, unquote

from starlette.types import Scope

from pdgate.gateway.apis import forms, restricted
from pdgate.gateway.apis.stored import kept_at
from pdgate.gateway.intake import TAKEN, UNMISTAKABLE, Intake
from pdgate.gateway.request_headers import RequestHeaders
from pdgate.gateway.security.authenticator import KeyState
from pdgate.protocols import request_id
from pdgate.protocols.apis import PASSED, RESPONSES, SOUNDS, STORED, Api, Kind
from pdgate.protocols.call import (
    BYTES_PER_TOKEN,
    Call,
    Json,
    Passed,
    Raw,
    encode,
    parse_object,
    value,
)
from pdgate.protocols.errors import BadRequest, PermissionDenied
from pdgate.protocols.fields import MOST_LIST_BYTES
from pdgate.protocols.inline_media import counted_bytes
from pdgate.scheduling.endpoint import Endpoint

METHODS: Final = frozenset({"GET", "POST", "PUT", "PATCH", "DELETE"})
NEVER: Final = frozenset({"/v1/load_lora_adapter", "/v1/unload_lora_adapter"})

_OURS: Final = ("/v1/models",)
_KEPT: Final = re.compile(rf"{RESPONSES}/([A-Za-z0-9_-]+)(/cancel)?")
_is_target: Final = re.compile(r"/[!-~]*").fullmatch
_is_hidden: Final = re.compile(r"%(2f|5c|2e|00)|\\", re.IGNORECASE).search
_is_escaped: Final = re.compile(rb"\\u00[2-7]").search
"""Letters in ASCII, which need no escape: a name could hide so."""
_request_ids: Final = re.compile(rb'"request_id"\s*:\s*"((?:[^"\\]|\\.)*)"').findall
_JSON: Final = b"application/json"
_BYTES: Final = b"application/octet-stream"


@dataclass(frozen=True, slots=True)
class PassedRequest:
    """
    Attributes:
        target: The path as it came, still encoded.
        query: Behind the question mark.
        stored: The id of the response that is asked for; empty for other requests.
    """

    api: Api
    method: str
    target: str
    query: str = ""
    stored: str = ""


def target_of(scope: Scope, path: str) -> str | None:
    """The encoded form of `path`, which ends the path that was asked for: an application may be
    mounted behind a prefix. None where that prefix is itself encoded.
    """
    target: bytes = scope.get("raw_path") or quote(scope["path"]).encode()
    prefix = scope["path"].removesuffix(path).encode()
    if not target.startswith(prefix):
        return None
    return target[len(prefix) :].decode("latin-1")


def asked(
    method: str, path: str, target: str, query: str, *, everything: bool
) -> PassedRequest | None:
    """None for what does not pass, and is the framework's. `everything`: unknown routes as well."""
    if not path.startswith("/v1/"):
        return None
    if not _is_target(f"{target}?{query}"):
        return None
    kept = _KEPT.fullmatch(path)
    if kept is not None and method == ("POST" if kept[2] else "GET"):
        return PassedRequest(STORED, method, target, query, kept[1])
    if method == "POST" and path in SOUNDS:
        return PassedRequest(SOUNDS[path], method, path, query)
    # Engines may take a slash at the end for none.
    plain = path.rstrip("/")
    if not everything or method not in METHODS or plain in TAKEN or plain in NEVER:
        return None
    if any(path == ours or path.startswith(f"{ours}/") for ours in _OURS):
        return None
    strange = {"", ".", ".."}.intersection(path.split("/")[1:-1])
    if strange or path.endswith(("/.", "/..")) or _is_hidden(target):
        # What reads it otherwise than we do may take it for another route.
        return None
    if path.startswith(f"{RESPONSES}/"):
        # DELETE, /input_items, an id that is none of ours: they are of a response all the same.
        return PassedRequest(STORED, method, target, query, path.split("/")[3])
    return PassedRequest(PASSED, method, target, query)


def passing(
    intake: Intake,
    asked: PassedRequest,
    request_headers: RequestHeaders,
    body: bytes,
    call_id: str,
    fleet: Iterable[Endpoint],
    key_state: KeyState | None = None,
) -> Call:
    """Raises BadRequest, TooLarge, UnsupportedMediaType, NotFound, PermissionDenied."""
    forwarded, content_type = intake.passed_headers(request_headers.all)
    kept: str | None = None
    query, at = asked.query, ""
    if asked.stored:
        at, kept = kept_at(asked.stored, fleet, key_state)
    only = None
    if key_state is not None and key_state.key.models:
        only = _only_model(intake, asked, content_type, body, key_state, fleet)
    named = forms.query_model(query) if query else None
    model = intake.aliases.get(named, named) if named else None
    if model != named and model is not None:
        query = forms.query_renamed(query, model)
    in_body, body, content_type = _in_body(intake, content_type, body)
    model = only or in_body or model
    if asked.stored:
        if key_state is not None and model is not None and not key_state.may_ask(model):
            raise PermissionDenied("this API key may not ask that model", param="model")
        model = kept
    path = f"{asked.target}?{query}" if query else asked.target
    return Call(
        id=call_id,
        attempt_id=request_id.attempt(call_id),
        path=path,
        body={},
        headers=forwarded,
        model=model,
        # How long a sound is, its bytes do not tell: 30 s are 1,500 tokens to Whisper, and 60 KB or 1 MB.
        prompt_tokens=0
        if asked.api.kind is Kind.SOUNDS
        else counted_bytes(body) // BYTES_PER_TOKEN,
        method=asked.method,
        blocks=(),
        api=asked.api,
        at=at,
        passed=Passed(asked.method, body, content_type or (_BYTES if body else _JSON)),
    )


def _only_model(
    intake: Intake,
    asked: PassedRequest,
    content_type: bytes,
    body: bytes,
    key_state: KeyState,
    fleet: Iterable[Endpoint],
) -> str | None:
    """Raises BadRequest, PermissionDenied, UnsupportedMediaType."""
    aliases = intake.aliases
    there = {model for endpoint in fleet for model in endpoint.models} | aliases.keys()
    others = {model for model in there if not key_state.may_ask(aliases.get(model, model))}
    path = unquote(asked.target)
    return restricted.only_model(
        path, asked.query, content_type, body, lambda name: aliases.get(name, name), others
    )


def _in_body(intake: Intake, content_type: bytes, body: bytes) -> tuple[str | None, bytes, bytes]:
    """The model that is named there, the body that names it as engines do, and its type."""
    if not body:
        return None, body, content_type
    form = forms.read(content_type, body) if content_type else None
    if form is not None:
        intake.check_names(form.names)
        for part in form.parts:
            if part.name == "request_id":
                intake.check_id(part.value.decode("utf-8", "replace"))
        if form.model is not None and form.model in intake.aliases:
            real = intake.aliases[form.model]
            return real, form.renamed(body, real), content_type
        return form.model, body, content_type
    try:
        fields = parse_object(body)
    except BadRequest:
        # Engines read JSON also where it is not called so.
        if b"json" in content_type or body.lstrip()[:1] in (b"{", b"["):
            raise
        return None, body, content_type
    intake.check_fields(fields)
    if not intake.trust_client_kv_params:
        _check_within(intake, fields)
    model = value(fields, "model")
    if model is not None and not isinstance(model, str):
        raise BadRequest("the model must be a string", param="model")
    if model is not None and model in intake.aliases:
        model = intake.aliases[model]
        body = encode({**fields, "model": model})
    return model, body, content_type or _JSON


def _check_within(intake: Intake, fields: Json) -> None:
    """All objects inside the values, however deep: a batch has whole calls in it. Raises BadRequest."""
    written = encode(fields)
    for said in _request_ids(written):
        intake.check_id(said.decode("utf-8", "replace"))
    named = any(name.encode() in written for name in UNMISTAKABLE)
    if not named and _is_escaped(written) is None:
        return
    if len(written) > MOST_LIST_BYTES:
        raise BadRequest("a body of this length must not escape letters, nor name what is ours")
    intake.check_id(value(fields, "request_id") if "request_id" in fields else None)
    for held in _objects_within(fields.values()):
        intake.check_names(held)
        intake.check_id(held.get("request_id"))


def _objects_within(values: Iterable[Any]) -> Iterable[dict[str, Any]]:
    """Inside these values, however deep."""
    waiting = [
        value({"": raw}, "", most_bytes=MOST_LIST_BYTES) if isinstance(raw, Raw) else raw
        for raw in values
    ]
    while waiting:
        found = waiting.pop()
        if isinstance(found, dict):
            yield found
            waiting += found.values()
        elif isinstance(found, list):
            waiting += found
