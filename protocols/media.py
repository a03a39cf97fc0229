"""Media of a call, and vLLM's words for encoding them before the prompt is read. Pure.

A part of a content is one of these; each stands here as a chat spells it, which is what an encoder is asked with:

    chat        {"type": "image_url", "image_url": {"url": "https://..." or "data:image/png;base64,..."}}
                {"type": "video_url", "video_url": {"url": ...}}
                {"type": "audio_url", "audio_url": {"url": ...}}        vLLM's own
                {"type": "input_audio", "input_audio": {"data": "...", "format": "wav"}}
    responses   the same, and {"type": "input_image", "image_url": "https://..." or "data:..."}
    messages    {"type": "image", "source": {"type": "url", "url": ...}}
                {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "..."}}

    contents    messages[].content      input[].content and input[].output      messages[].content, and that of tool_result in it

An encoder is asked with a chat of one such part, and answers with ec_transfer_params: the hash by which engines know the
item -> where its embedding is. Those of all items together go to prefill and decode beside the media, which stay: prefill hashes
them itself, as it makes the same chat of them, and finds the embedding by that.

Source: vLLM 0.33.0, examples/disaggregated/disaggregated_encoder/disagg_epd_proxy.py, MM_TYPES, fanout_encoder_primer(),
prepare_for_decode() (with --no-rewrite); 0.32.0, entrypoints/anthropic/serving.py, _convert_image_source_to_url(),
_convert_user_tool_result(); entrypoints/openai/responses/utils.py, _construct_message_from_response_item(); renderers/chat_utils.py,
MM_PARSER_MAP.
"""

import hashlib
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import msgspec

from pdgate.protocols.apis import MESSAGES, RESPONSES
from pdgate.protocols.call import CHAT, Call
from pdgate.protocols.errors import BadRequest, EngineFailed
from pdgate.protocols.fields import UNREADABLE, Json, Raw, encode

FIELD: Final = "ec_transfer_params"
TYPES: Final = frozenset({"image_url", "video_url", "audio_url", "input_audio"})
MARKS: Final = tuple(kind.encode() for kind in sorted(TYPES))
GOES_ALONG: Final = ("model", "mm_processor_kwargs", "media_io_kwargs", "priority")
"""Fields that change what an encoder makes of an item, or when."""
MOST_ITEMS: Final = 256
"""In one call."""
MOST_PARTS: Final = 10_000
"""In one call with media: to look at what is no part takes 0.5 us."""
MOST_HANDLE_BYTES: Final = 64 << 10
"""Of what an encoder says of one item; it is a few hundred."""


class _MediaHolder(msgspec.Struct):
    """A message, an item of a response's input, or a part that holds the result of a tool."""

    content: Raw = Raw(b"")
    output: Raw = Raw(b"")


class _MediaPart(msgspec.Struct):
    type: str = ""


class _InputImage(msgspec.Struct):
    image_url: str
    detail: str | None = None
    uuid: str | None = None


class _ImageSource(msgspec.Struct):
    type: str = "base64"
    media_type: str = "image/jpeg"
    data: str = ""
    url: str = ""


class _ImageBlock(msgspec.Struct):
    source: _ImageSource


_holders = msgspec.json.Decoder(list[_MediaHolder])
_parts = msgspec.json.Decoder(list[Raw])
_part = msgspec.json.Decoder(_MediaPart)
_holder = msgspec.json.Decoder(_MediaHolder)
_input_image = msgspec.json.Decoder(_InputImage)
_image_block = msgspec.json.Decoder(_ImageBlock)


class _Api(NamedTuple):
    """How an API spells media.

    Attributes:
        field: Its members have contents.
        contents: Fields of a member.
        marks: One of them is in each body with media.
        as_chat: A part, and its type -> the same as a part of a chat; None for what is no medium.
        goes_along: Fields for encoders; those that prefill would not read would make another hash.
        holds: Type of a part with a content of its own; empty for none.
    """

    field: str
    contents: tuple[str, ...]
    marks: tuple[bytes, ...]
    as_chat: Callable[[Raw, str], Raw | None]
    goes_along: tuple[str, ...] = GOES_ALONG
    holds: str = ""


def _of_chat(part: Raw, kind: str) -> Raw | None:
    return part if kind in TYPES else None


def _of_responses(part: Raw, kind: str) -> Raw | None:
    if kind != "input_image":
        return _of_chat(part, kind)
    said = _input_image.decode(part)
    image = {"url": said.image_url}
    if said.detail is not None:
        image["detail"] = said.detail
    named = {} if said.uuid is None else {"uuid": said.uuid}
    return _image(image, named)


def _of_messages(part: Raw, kind: str) -> Raw | None:
    if kind != "image":
        return None
    source = _image_block.decode(part).source
    if source.type == "url":
        return _image({"url": source.url}) if source.url else None
    # vLLM takes any other type for base64.
    url = f"data:{source.media_type};base64,{source.data}"
    return _image({"url": url}) if source.data else None


def _image(image: Mapping[str, str], more: Mapping[str, str] | None = None) -> Raw:
    return Raw(encode({"type": "image_url", "image_url": image, **(more or {})}))


_APIS: Final[Mapping[str, _Api]] = {
    CHAT: _Api("messages", ("content",), MARKS, _of_chat),
    RESPONSES: _Api("input", ("content", "output"), (b"input_image", *MARKS), _of_responses),
    MESSAGES: _Api(
        "messages", ("content",), (b'"image"',), _of_messages, ("model",), "tool_result"
    ),
}


def held_in(call: Call) -> Raw | None:
    """Where its media would be; None for a call that can have none."""
    api = _APIS.get(call.path)
    said = None if api is None else call.body.get(api.field)
    return said if isinstance(said, Raw) else None


def may_have_media(call: Call) -> bool:
    """A quick look; false for all that have none but those that write the words."""
    said = held_in(call)
    if said is None:
        return False
    text = bytes(said)
    return any(mark in text for mark in _APIS[call.path].marks)


def items_of(call: Call) -> dict[bytes, Raw]:
    """Its media as parts of a chat, each once, by hashes of what an encoder is asked for. Raises BadRequest.

    Bodies of another shape have none: what is wrong with them is for the engines to say.
    """
    api = _APIS[call.path]
    try:
        parts = [
            part
            for holder in _holders.decode(call.body[api.field])
            for name in api.contents
            for part in _parts_of(getattr(holder, name))
        ]
        found = [(part, _type_of(part)) for part in parts[:MOST_PARTS]]
        more = [
            (part, _type_of(part))
            for holder, kind in found
            if kind and kind == api.holds
            for part in _parts_of(_holder.decode(holder).content)
        ]
    except UNREADABLE:
        return {}
    if (count := len(parts) + len(more)) > MOST_PARTS:
        raise BadRequest(
            f"a call with media may have {MOST_PARTS} parts, not {count}", param=api.field
        )
    media = [item for part, kind in (*found, *more) if (item := _as_chat(api, part, kind))]
    if len(media) > MOST_ITEMS:
        raise BadRequest(f"a call may have {MOST_ITEMS} media, not {len(media)}", param=api.field)
    how = b"\n".join(bytes(call.body.get(name, b"")) for name in api.goes_along)
    return {hashlib.sha256(how + b"\n" + bytes(item)).digest(): item for item in media}


def _parts_of(content: Raw) -> list[Raw]:
    return _parts.decode(content) if bytes(memoryview(content)[:1]) == b"[" else []


def _type_of(part: Raw) -> str:
    try:
        return _part.decode(part).type
    except UNREADABLE:
        # A text may stand without an object around it, beside media.
        return ""


def _as_chat(api: _Api, part: Raw, kind: str) -> Raw | None:
    try:
        return api.as_chat(part, kind)
    except UNREADABLE:
        # A picture without an address, or by the id of a file.
        return None


def asking(call: Call, item: Raw) -> Json:
    """The body for an encoder. It samples nothing, whatever the limit."""
    along = _APIS[call.path].goes_along
    said = {name: call.body[name] for name in along if name in call.body}
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
