"""Internal fields of a call and of its answer, between the gateway and its engines.

In a call they say which peer an engine dials, so a client may not set them; in an answer they say
where KV lies, so a client does not get them. vLLM 0.33 writes `kv_transfer_params` into whole
answers and into the chunk with the finish reason; TensorRT-LLM writes `disaggregated_params`
into choices; responses repeat what they were asked with.

Source: vLLM 0.33.0, entrypoints/openai/{chat_completion,completion,responses}/protocol.py,
entrypoints/anthropic/protocol.py; TensorRT-LLM 1.2, serve/openai_protocol.py.
"""

import json
import re
from typing import Any, Final

import msgspec

from pdgate.protocols import many_fields
from pdgate.protocols.chunks import LARGE_BYTES, has_too_many_choices
from pdgate.protocols.fields import UNREADABLE, Json, Raw, value

OURS: Final = frozenset(
    {
        "kv_transfer_params",
        "ec_transfer_params",
        "transfer_id",
        "bootstrap_host",
        "bootstrap_port",
        "bootstrap_room",
        "bootstrap_pair_key",
        "disagg_spec",
        "disaggregated_params",
    }
)
OUR_PREFIXES: Final = ("do_remote_", "remote_", "bootstrap_")

_mentions = re.compile(
    rb'"(?:(?:%b)|(?:%b)[a-z_]{1,64})"\s*:'
    % ("|".join(sorted(OURS)).encode(), "|".join(OUR_PREFIXES).encode())
).search
"""Behind quotes within a text stands no colon, and before them a backslash."""


SHORT_BYTES: Final = 4 << 10
"""Of a document that is looked through as text."""


def mentions_ours(document: bytes) -> bool:
    """Whether one of these names may be in it."""
    if len(document) <= SHORT_BYTES:
        text = document.decode("latin-1")
        # Four looks take a tenth of the expression; one of them is in each of the names. And in a
        # text they take half of what they take in bytes.
        found = "transfer_" in text or "bootstrap_" in text or "remote_" in text or "disagg" in text
    else:
        find = document.find
        found = (
            find(b"transfer_") >= 0
            or find(b"bootstrap_") >= 0
            or find(b"remote_") >= 0
            or find(b"disagg") >= 0
        )
    return found and _mentions(document) is not None


LENIENT_BYTES: Final = 1 << 20
"""Of what is read by Python's json, ten times as slow; 1 MiB takes 10 ms."""

_HOLDERS: Final = frozenset({"choices", "message", "delta", "response"})
"""Fields whose objects are those of an answer, too; texts and arguments of tools are not."""
_IN_CHOICES: Final = frozenset({"message", "delta"})
_NONE: Final[frozenset[str]] = frozenset()
"""Each level is looked through anew, so there are no more than these three."""


class _Indexed(msgspec.Struct):
    """A choice, as each is in a long list of them: others cannot be counted."""

    index: int


_read = msgspec.json.Decoder(dict[str, Raw]).decode
_read_indexed = msgspec.json.Decoder(list[_Indexed]).decode
_read_list = msgspec.json.Decoder(list[Raw]).decode
_unread = msgspec.json.Decoder(Raw).decode


def hides(body: Json) -> bool:
    """Whether the client of this call is not to know; one that may set them, and did, gets them, too.

    What is not raw was written by us (protocols/media.py).
    """
    return OURS.isdisjoint(body) or all(
        not isinstance(body[name], Raw) or value(body, name) is None for name in OURS & body.keys()
    )


def is_json(document: bytes) -> bool:
    """Whether it is all there; with what Python's json accepts beyond the standard. False for one that is too costly to look through."""
    if many_fields.has_too_many_containers(document):
        return False
    try:
        _unread(document)
    except UNREADABLE:
        return lenient(document) is not None
    return True


def without_ours(document: bytes) -> bytes:
    """A JSON answer, or a chunk of one, without these fields; all others as they were written."""
    if not mentions_ours(document):
        return document
    try:
        return _without(document, _HOLDERS)
    except many_fields.TooManyFields:
        return document
    except UNREADABLE:
        found = lenient(document)
        # What is cut off is for others to refuse.
        return document if found is None else json.dumps(_pruned(found)).encode()


def _without(document: bytes, holders: frozenset[str]) -> bytes:
    read = _read if len(document) <= LARGE_BYTES else many_fields.parse
    kept = {
        name: Raw(_cleared(name, bytes(found))) if name in holders else found
        for name, found in read(document).items()
        if not _is_ours(name)
    }
    return msgspec.json.encode(kept)


def _cleared(name: str, found: bytes) -> bytes:
    if not mentions_ours(found):
        return found
    if name == "choices" and found.startswith(b"["):
        if len(found) > LARGE_BYTES:
            if has_too_many_choices(found, b'"index"'):
                return found
            _read_indexed(found)
        return msgspec.json.encode([Raw(_choice(bytes(each))) for each in _read_list(found)])
    return _without(found, _NONE) if found.startswith(b"{") else found


def _choice(found: bytes) -> bytes:
    if not found.startswith(b"{") or not mentions_ours(found):
        return found
    return _without(found, _IN_CHOICES)


def _is_ours(name: str) -> bool:
    return name in OURS or name.startswith(OUR_PREFIXES)


def lenient(document: bytes) -> Any:
    """What Python's json accepts beyond the standard, as some engines write with it; else None."""
    if len(document) > LENIENT_BYTES:
        return None
    try:
        return json.loads(document)
    except (ValueError, RecursionError):
        return None


def _pruned(found: Any) -> Any:
    match found:
        case dict():
            return {
                name: _pruned(each) if name in _HOLDERS else each
                for name, each in found.items()
                if not _is_ours(name)
            }
        case list():
            return [_pruned(each) for each in found]
    return found
