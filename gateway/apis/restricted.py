"""Restricted keys, for certain models: every model that a request names which passes as it came.

A request may name models in several places, and which of them an engine goes by is the engine's
affair. So of a key for certain models all have to be one, and what could hide one is refused:

    query                ?model=a&model=b, between & or ;
    path                 /v1/engines/b/...
    JSON                 "model" at any depth, twice in an object, in any of JSON's encodings
    forms                each field of the name, parts that are JSON, lines of JSON (a batch)
    anything else        only sound, pictures and plain bytes, which no engine reads models from

An adapter is a model of its own, and SGLang and TensorRT-LLM let a call name it beside its model. A call that
goes on with a stored response has that one's model, so the route that knows which that is alone takes it (stored.py).
Source: SGLang, srt/entrypoints/openai/protocol.py (lora_path), srt/managers/io_struct.py (lora_id); TensorRT-LLM, serve/openai_protocol.py (lora_request).
"""

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from pdgate.gateway.apis import forms
from pdgate.gateway.intake import HOLDERS
from pdgate.protocols.apis import RESPONSES
from pdgate.protocols.call import Call, value
from pdgate.protocols.errors import BadRequest, PermissionDenied, UnsupportedMediaType
from pdgate.protocols.fields import MOST_VALUE_BYTES
from pdgate.protocols.sampling import MOST_BYTES, SAMPLING

ADAPTERS: Final = ("lora_path", "lora_id", "lora_request")
"""Fields of a call."""
MODELS: Final = frozenset({"model", "lora_path", "lora_id", "lora_name"})
GOES_ON: Final = "previous_response_id"
MOST_JSON_BYTES: Final = 256 << 10
"""Of a body that names models, 30 ms at worst."""
_OPAQUE: Final = (b"", b"application/octet-stream", b"audio/", b"image/", b"video/")
_PLAIN_CODINGS: Final = frozenset({b"7bit", b"8bit", b"binary"})
_BEFORE_JSON: Final = b"\xef\xbb\xbf\xfe\xff\0 \t\r\n"
"""Byte order marks, the zeros of wider encodings, and white space."""


def check_fields(call: Call) -> None:
    """Raises BadRequest if a call names a second model beside the one that it is checked by."""
    body = call.body
    for name in ADAPTERS:
        if name in body and value(body, name) is not None:
            raise _second(name)
    for name in (*HOLDERS, SAMPLING):
        most_bytes = MOST_BYTES if name == SAMPLING else MOST_VALUE_BYTES
        held = value(body, name, most_bytes=most_bytes) if name in body else None
        # A list has one for each prompt.
        for one in held if isinstance(held, list) else [held]:
            if _names_a_model(one) or (
                isinstance(one, Mapping) and any(_names_a_model(one.get(each)) for each in HOLDERS)
            ):
                raise _second(name)


def _names_a_model(held: object) -> bool:
    return isinstance(held, Mapping) and not MODELS.union(ADAPTERS).isdisjoint(held)


def only_model(
    path: str,
    query: str,
    content_type: bytes,
    body: bytes,
    real: Callable[[str], str],
    others: Iterable[str],
) -> str | None:
    """The one model that such a request names; None for none.

    `real` is the name by which engines know a model, `others` are models that the key is not for.

    Raises BadRequest if there are several, Forbidden, UnsupportedMediaType.
    """
    if any(f"/{other}/" in f"{path}/" for other in others):
        raise PermissionDenied("this API key may not ask that model", param="model")
    found = _in_pairs(query)
    if body:
        found += _in_body(content_type, body)
    models = {real(name) for name in found}
    if len(models) > 1:
        raise BadRequest(
            "the request names several models, and this API key is for certain ones", param="model"
        )
    return next(iter(models), None)


def named_in(message: bytes) -> list[str]:
    """The models that a message of a session names. Raises BadRequest for one that is too long to be read."""
    return _in_bytes(b"", message)


def _in_body(content_type: bytes, body: bytes) -> list[str]:
    form = forms.read(content_type, body)
    if form is None:
        return _in_bytes(content_type, body)
    if not form.multipart:
        return _in_pairs(body.decode("latin-1"))
    found = []
    for part in form.parts:
        headers = dict(part.headers)
        if headers.get(b"content-transfer-encoding", b"binary").lower() not in _PLAIN_CODINGS:
            raise UnsupportedMediaType("a part of the form is encoded")
        if part.name == GOES_ON:
            raise _elsewhere()
        if part.name in MODELS:
            found.append(part.value.decode("utf-8", "replace"))
        elif part.name and not _looks_like_json(part.value):
            # A field, or a file.
            continue
        else:
            found += _in_bytes(headers.get(b"content-type", b""), part.value)
    return found


def _in_bytes(content_type: bytes, body: bytes) -> list[str]:
    if _looks_like_json(body):
        return _in_json(body)
    media = content_type.split(b";", 1)[0].strip().lower()
    if media not in _OPAQUE and not media.startswith(_OPAQUE[2:]):
        raise UnsupportedMediaType(
            "this API key is for certain models, and what models are named there cannot be read"
        )
    return []


def _looks_like_json(body: bytes) -> bool:
    return body[:64].lstrip(_BEFORE_JSON)[:1] in (b"{", b"[") or (
        len(body) > 64 and not body[:64].strip(_BEFORE_JSON)
    )


def _in_json(body: bytes) -> list[str]:
    """Also of lines of JSON. Raises BadRequest."""
    if len(body) > MOST_JSON_BYTES:
        raise BadRequest(
            f"of a key for certain models, JSON has at most {MOST_JSON_BYTES} bytes on this route"
        )
    try:
        return _named(body)
    except ValueError:
        pass
    found = []
    for line in body.splitlines():
        try:
            found += _named(line) if line.strip() else []
        except ValueError as error:
            raise BadRequest(f"the request body is not valid JSON: {error}") from None
    return found


def _named(body: bytes) -> list[str]:
    """Raises ValueError."""
    found: list[str] = []

    def note(pairs: list[tuple[str, Any]]) -> None:
        for name, said in pairs:
            known = name.strip().lower()
            if known in MODELS and said is not None:
                found.extend(said if isinstance(said, list) else [said])
            elif known == GOES_ON and said is not None:
                raise _elsewhere()

    try:
        json.loads(body, object_pairs_hook=note)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    return [name for name in found if isinstance(name, str)]


def _in_pairs(text: str) -> list[str]:
    pairs = (
        *forms.pairs_in(text),
        *(forms.pairs_in(text.replace(";", "&")) if ";" in text else ()),
    )
    if any(name.strip().lower() == GOES_ON and said for name, said in pairs):
        raise _elsewhere()
    return [said for name, said in pairs if name.strip().lower() in MODELS]


def _second(param: str) -> BadRequest:
    return BadRequest(
        f"{param} names a model, and this API key is for certain ones: name it in model alone",
        param=param,
    )


def _elsewhere() -> BadRequest:
    return BadRequest(
        f"this API key is for certain models: a response is gone on with by {GOES_ON} of {RESPONSES} alone",
        param=GOES_ON,
    )
