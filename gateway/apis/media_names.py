"""Names of media, kept apart by API key.

vLLM keeps what its encoders and its prefix cache make of a picture under a name: the hash of the picture, or what the
client says it is. So who knew or guessed another's name had that one's picture read for them, or put another in its
place, for all who share the engine. Where API keys are asked for, a name is its key's: the engine gets a hash of
both. A client that says the same name again still finds what it left.

    {"type": "image_url", "image_url": ..., "uuid": NAME}       in a content, or in content_parts
    {"mm_hashes": {"image": [NAME, ...]}, ...}                   features of /inference/v1/generate

Source: vLLM 0.32.0, renderers/chat_utils.py (uuid of a part), multimodal/processing/inputs.py (a uuid stands for the
hash), v1/core/encoder_cache_manager.py (no salt), entrypoints/scale_out/token_in_token_out/{protocol,serving}.py,
entrypoints/pooling/scoring/protocol.py.
"""

import hashlib
from collections.abc import Callable
from typing import Any, Final

import msgspec

from pdgate.protocols.call import CHAT, Call, encode
from pdgate.protocols.errors import BadRequest
from pdgate.protocols.fields import UNREADABLE, Raw

FEATURES: Final = "features"
CONTENTS: Final = frozenset(
    {
        "messages", "input", "content_parts",
        "queries", "query", "documents", "items", "data_1", "data_2", "text_1", "text_2",
    }
)  # fmt: skip
MESSAGES: Final = "messages"
UUID, HASHES = b'"uuid"', b'"mm_hashes"'
ESCAPES: Final = (b"\\u004", b"\\u005", b"\\u006", b"\\u007")
"""Of letters. In each text that has a name is one of them, or the word."""
MOST_OBJECTS: Final = 20_000
"""Messages and parts of one call with names, 1 us each."""
MOST_DEPTH: Final = 8
"""A part is in the fourth: messages, message, content, part; a tool's result has a content of its own."""

_list = msgspec.json.Decoder(list[Raw])
_object = msgspec.json.Decoder(dict[str, Raw])
_hashes = msgspec.json.Decoder(dict[str, list[str | None]])


LIST: Final = ord("[")
"""A number, which is found in half the time that a byte takes."""


def may_have_parts(path: str, body: bytes) -> bool:
    """A quick look: in a chat a part stands in a list within that of the messages, so most have none."""
    return path != CHAT or body.find(LIST, body.find(LIST) + 1) > 0


def kept_apart(call: Call, tenant: str) -> Call:
    """The call with names that are `tenant`'s alone. Raises BadRequest for more parts than one may have, and no JSON."""
    body = call.body
    changed: dict[str, Any] = {}
    # A chat has no other field with media.
    for name in (MESSAGES,) if call.path == CHAT else body:
        held = body.get(name)
        if not isinstance(held, Raw) or not (name in CONTENTS or name == FEATURES):
            continue
        if _may_name(name, bytes(held)):
            named = (
                MediaNames(tenant).of_features
                if name == FEATURES
                else MediaNames(tenant).of_content
            )
            changed[name] = _read(named, held)
    return msgspec.structs.replace(call, body={**body, **changed}) if changed else call


def _may_name(field: str, text: bytes) -> bool:
    if (HASHES if field == FEATURES else UUID) in text:
        return True
    return b"\\u00" in text and any(escape in text for escape in ESCAPES)


def _read(named: Callable[[Raw], Any], held: Raw) -> Any:
    try:
        return Raw(encode(named(held)))
    except UNREADABLE:
        # Engines read more than the standard has, so a name in it would pass as it is.
        raise BadRequest("what names media must be JSON by the standard") from None


class MediaNames:
    """One tenant's, in one field of a call."""

    def __init__(self, tenant: str) -> None:
        self._tenant = hashlib.sha256(tenant.encode()).digest()
        self._objects = 0

    def own(self, name: str) -> str:
        """By which engines know what this tenant calls `name`."""
        said = name.encode("utf-8", "surrogatepass")
        return hashlib.blake2b(said, key=self._tenant, digest_size=16).hexdigest()

    def of_features(self, held: Raw) -> Any:
        found = _object.decode(held)
        if "mm_hashes" in found:
            hashes = _hashes.decode(found["mm_hashes"])
            said = {
                kind: [None if one is None else self.own(one) for one in each]
                for kind, each in hashes.items()
            }
            found["mm_hashes"] = Raw(encode(said))
        return found

    def of_content(self, held: Raw, depth: int = 0) -> Any:
        """Messages, a message, its content, or a part of that."""
        first = bytes(memoryview(held)[:1])
        if depth > MOST_DEPTH or first not in (b"[", b"{"):
            return held
        if first == b"[":
            return [self.of_content(each, depth + 1) for each in _list.decode(held)]
        self._objects += 1
        if self._objects > MOST_OBJECTS:
            raise BadRequest(f"a call that names media may have {MOST_OBJECTS} messages and parts")
        found: dict[str, Any] = _object.decode(held)
        if "content" in found:
            found["content"] = self.of_content(found["content"], depth + 1)
        if "uuid" in found and bytes(memoryview(found["uuid"])[:1]) == b'"':
            found["uuid"] = self.own(msgspec.json.decode(found["uuid"]))
        return found
