"""Inline media: pictures, sound and video that stand in a body themselves, and how much of a prompt they are.

    "url": "data:image/png;base64,iVBORw0K..."       a chat, Messages; "image_url" and its like in Responses
    "data": "UklGRiQAAABX..."                        sound of a chat (input_audio), a picture of Messages (source)
    "image_embeds": "k05VTVBZ..."                    made by an encoder already

Their bytes say nothing of their tokens, which follow from pixels and seconds: a picture of 1 MB in base64 has
as many bytes as 330,000 tokens of text. So each counts as MEDIA_TOKENS. That is what a picture of a
million pixels is to Qwen3-VL, a token for 32 x 32 of them; to Qwen2.5-VL it is 1,369 (28 x 28), and to Whisper 30 s of sound
are 1,500.

A long text is looked at every few kilobytes only, where base64 has no space and few other texts have none, and the
strings that are met so by what is around them: 16 MB of text take 1 ms.

Source: vLLM 0.32.0, renderers/chat_utils.py, MM_PARSER_MAP; entrypoints/anthropic/serving.py, _convert_image_source_to_url();
entrypoints/scale_out/token_in_token_out/protocol.py, MultiModalFeatures. SGLang 001067f, srt/managers/io_struct.py
(GenerateReqInput). Transformers, models/qwen2_vl/image_processing_qwen2_vl.py, smart_resize().
"""

import re
from typing import Final

from pdgate.protocols.fields import Json

MEDIA_TOKENS: Final = 1024
MEDIA_BYTES: Final = 4 * MEDIA_TOKENS
"""That a medium counts as, in bytes of text."""

LEAST_BYTES: Final = 16 << 10
"""Shorter ones count as their bytes; they are small pictures."""

BESIDE: Final = frozenset({"image_data", "video_data", "audio_data", "features"})
"""Fields of calls of tokens (SGLang's /generate, vLLM's) for media that the prompt only has a place for."""

_COUNTED_BY_TOKENS: Final = "features"
"""The prompt has a token for each of theirs already."""

_STEP: Final = 4 << 10
_GLANCE: Final = 64
"""Of each _STEP so many bytes are looked at, so both fit into the shortest one."""

_ends_in_key: Final = re.compile(
    rb'"(?:(url|(?:image|video|audio)_url)|(data)|(?:image|video|audio)_embeds)"\s*:\s*"\Z'
).search
"""Quotes within a text are escaped, so no text ends so."""
_KEY_BYTES: Final = 64

_IN_BASE64: Final = rb"(?:[A-Za-z0-9+_-]|\\?/|\\u00(?:2[bBfF]|3[dD]))"
"""Some escape what JSON need not have escaped."""
_is_uri: Final = re.compile(rb'data:[^",]{0,100};base64,' + _IN_BASE64 + rb"{64}").match
_is_base64: Final = re.compile(_IN_BASE64 + rb"{64}").match
_ends_as_base64: Final = re.compile(
    rb"[u0-9A-Fa-f/]{0,5}?" + _IN_BASE64 + rb"*(?:=|\\u003[dD]){0,2}"
).fullmatch
"""What is looked at may begin within an escape."""
_END_BYTES: Final = 48

_MEDIUM_BYTES: Final = 200
_is_of_medium: Final = re.compile(
    rb'"input_audio"\s*:\s*\{[^{}]*\Z|"source"\s*:\s*\{[^{}]*"base64"[^{}]*\Z'
).search
_goes_on_as_medium: Final = re.compile(
    rb'"\s*,\s*"(?:format"\s*:|type"\s*:\s*"base64"|media_type"\s*:\s*"(?:image|audio|video)/)'
).match
"""What stands beside "data", which a tool's arguments and documents may have, too."""


def media_in(text: bytes) -> list[tuple[int, int]]:
    """Where in a JSON text they begin and end, between their quotes, from the first on."""
    found = []
    at, behind, size = _STEP, 0, len(text)
    while at < size:
        if text.find(b" ", at, at + _GLANCE) < 0:
            begin = text.rfind(b'"', behind, at) + 1
            end = text.find(b'"', at)
            if end < 0:
                break
            if (
                begin > 0
                and end - begin >= LEAST_BYTES
                and (key := _ends_in_key(text[max(0, begin - _KEY_BYTES) : begin])) is not None
                and _is_medium(text, begin, end, *key.groups())
            ):
                found.append((begin, end))
            at = behind = end
        at += _STEP
    return found


def _is_medium(text: bytes, begin: int, end: int, url: bytes | None, data: bytes | None) -> bool:
    """Of a string by its key: what else it has, and stands beside it, must say the same."""
    if (_is_base64 if url is None else _is_uri)(text, begin) is None:
        return False
    if _ends_as_base64(text[max(begin, end - _END_BYTES) : end]) is None:
        return False
    if data is None:
        return True
    before = text[max(0, begin - _MEDIUM_BYTES) : begin]
    return _is_of_medium(before) is not None or _goes_on_as_medium(text, end) is not None


def counted_bytes(text: bytes) -> int:
    """Bytes of a JSON text as they count in a prompt: less than it has, if media are in it."""
    counted = len(text)
    for begin, end in media_in(text):
        counted += MEDIA_BYTES - (end - begin)
    return counted


def counted_beside(fields: Json, counted: int) -> int:
    """What counts of a call of tokens, of whose whole body `counted` did."""
    for name in BESIDE.intersection(fields):
        written = bytes(fields[name])
        counted -= counted_bytes(written)
        if name != _COUNTED_BY_TOKENS:
            # An object has two strings at least, a key and an address.
            urls = written.count(b'"url"')
            items = urls + max(0, written.count(b'"') // 2 - 2 * urls)
            counted += min(len(written), items * MEDIA_BYTES)
    return counted
