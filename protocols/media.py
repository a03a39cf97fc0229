"""Media of a chat, and vLLM's words for encoding them before the prompt is read. Pure.

A chat's content may be a list of parts, of which these are media:

    {"type": "image_url", "image_url": {"url": "https://..." or "data:image/png;base64,..."}}
    {"type": "video_url", "video_url": {"url": ...}}
    {"type": "audio_url", "audio_url": {"url": ...}}        vLLM's own
    {"type": "input_audio", "input_audio": {"data": "...", "format": "wav"}}

An encoder is asked with a chat of one such part, and answers with ec_transfer_params: the hash by which engines know the
item -> where its embedding is. Those of all items together go to prefill and decode beside the messages, whose media stay: prefill hashes
them itself, and finds the embedding by that.

Source: vLLM 0.33.0, examples/disaggregated/disaggregated_encoder/disagg_epd_proxy.py, MM_TYPES, fanout_encoder_primer(),
prepare_for_decode() (with --no-rewrite).
"""

import hashlib
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from pdgate.protocols.call import CHAT, Call
from pdgate.protocols.errors import BadRequest, EngineFailed
from pdgate.protocols.fields import UNREADABLE, Json, Raw

FIELD: Final = "ec_transfer_params"
TYPES: Final = frozenset({"image_url", "video_url", "audio_url", "input_audio"})
MARKS: Final = tuple(kind.encode() for kind in sorted(TYPES))
GOES_ALONG: Final = ("model", "mm_processor_kwargs", "media_io_kwargs", "priority")
"""Fields that change what an encoder makes of an item, or when."""
MOST_ITEMS: Final = 256
"""In one chat."""
MOST_PARTS: Final = 10_000
"""In one chat with media: to look at what is no part takes 0.5 us."""
MOST_HANDLE_BYTES: Final = 64 << 10
"""Of what an encoder says of one item; it is a few hundred."""


class _MediaMessage(msgspec.Struct):
    content: Raw = Raw(b"")


class _MediaPart(msgspec.Struct):
    type: str = ""


_messages = msgspec.json.Decoder(list[_MediaMessage])
_parts = msgspec.json.Decoder(list[Raw])
_part = msgspec.json.Decoder(_MediaPart)


def may_have_media(call: Call) -> bool:
    """A quick look; false for all that have none but those that write the words."""
    said = call.body.get("messages") if call.path == CHAT else None
    if not isinstance(said, Raw):
        return False
    text = bytes(said)
    return any(mark in text for mark in MARKS)


def items_of(call: Call) -> dict[bytes, Raw]:
    """Its media, each once, by hashes of what an encoder is asked for. Raises BadRequest.

    Messages of another shape have none: what is wrong with them is for the engines to say.
    """
    try:
        contents = [message.content for message in _messages.decode(call.body["messages"])]
        parts = [
            part
            for content in contents
            if bytes(memoryview(content)[:1]) == b"["
            for part in _parts.decode(content)
        ]
    except UNREADABLE:
        return {}
    if len(parts) > MOST_PARTS:
        raise BadRequest(
            f"a chat with media may have {MOST_PARTS} parts, not {len(parts)}", param="messages"
        )
    media = [part for part in parts if _is_media(part)]
    if len(media) > MOST_ITEMS:
        raise BadRequest(f"a chat may have {MOST_ITEMS} media, not {len(media)}", param="messages")
    how = b"\n".join(bytes(call.body.get(name, b"")) for name in GOES_ALONG)
    return {hashlib.sha256(how + b"\n" + bytes(part)).digest(): part for part in media}


def _is_media(part: Raw) -> bool:
    try:
        return _part.decode(part).type in TYPES
    except UNREADABLE:
        # A text may stand without an object around it, beside media.
        return False


def asking(call: Call, item: Raw) -> Json:
    """The body for an encoder. It samples nothing, whatever the limit."""
    said = {name: call.body[name] for name in GOES_ALONG if name in call.body}
    messages = [{"role": "user", "content": [item]}]
    return {**said, "messages": messages, "max_tokens": 1, "stream": False}


def handles_in(reply: Json) -> Mapping[str, Any]:
    """Hash -> where the embedding is, of an encoder's answer; empty where engines share a store."""
    said = reply.get(FIELD)
    if said is None:
        return {}
    if isinstance(said, Raw) and len(said) > MOST_HANDLE_BYTES:
        raise EngineFailed(f"the encode engine answered with {len(said)} bytes of {FIELD}")
    try:
        found = (
            msgspec.json.decode(said, type=dict[str, Raw] | None) if isinstance(said, Raw) else said
        )
    except UNREADABLE:
        raise EngineFailed(f"the encode engine answered with {FIELD} that are no object") from None
    return found or {}


def encoded(call: Call, handles: Mapping[str, Any]) -> Call:
    """The call with all that encoders said."""
    if not handles:
        return call
    return msgspec.structs.replace(call, body={**call.body, FIELD: dict(handles)})
