"""What of a call's prompt can be told apart by tokens, and where its blocks of bytes end in them.

    prompt: [1, 2, 3]           its tokens are there
    token_ids, input_ids        the same, of calls of tokens
    prompt: "text", messages    its tokens are the engine's to tell (tokenizing.py)
    several prompts, none       neither

Where a block ends is exact for token ids. For text it is as if all tokens were equally long: a
place in the middle of a long prompt may be off by some blocks, its beginning and its end are not.
"""

from array import array
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any, Final

import msgspec

from pdgate.protocols.apis import GENERATE, NATIVE
from pdgate.protocols.call import Call, Json, Raw, encode
from pdgate.scheduling.prefix.index import BLOCK_BYTES, MOST_BLOCKS

MOST_BYTES: Final = MOST_BLOCKS * BLOCK_BYTES
"""Of a list of token ids, as far as the index looks: 6 ms a MiB."""

_token_ids: Final = msgspec.json.Decoder(list[int])

_FIELDS: Final = {GENERATE: "token_ids", NATIVE: "input_ids"}
_MORE_THAN_TOKENS: Final = frozenset(
    {"features", "content_parts", "image_data", "video_data", "audio_data"}
)
"""Fields of calls of tokens for pictures and sound, whose tokens do not say what they show.

Source: vLLM 0.32.0, entrypoints/scale_out/token_in_token_out/protocol.py (GenerateRequest); SGLang at 001067f,
srt/managers/io_struct.py (GenerateReqInput)."""

_KEPT_OTHERWISE: Final = ("extra_key", "lora_path", "truncate_prompt_tokens", "truncation_side")
"""Fields by which an engine keeps a prompt apart, of which its events say nothing that could be told from tokens, or
reads other tokens than those of the prompt."""

_NULLS: Final = (Raw(b"null"), None)

_MEDIA: Final = (b"image_", b"audio", b"video_")
"""In messages that have parts of other kinds than text, and in some that only speak of them."""


@dataclass(frozen=True, slots=True)
class IndexedPrompt:
    """
    Attributes:
        blocks: As the prefix index counts.
        ends: For each of them, how many tokens there are up to its end.
        salt: What keeps its blocks apart from those of other tenants; None for nothing.
    """

    blocks: Sequence[int]
    ends: Sequence[int]
    tokens: Sequence[int]
    model: str | None
    salt: Any = None

    def extras(self, blocks: int, adapters: Collection[str]) -> Sequence[Any]:
        """What engines say of so many token blocks besides their tokens."""
        adapter = [self.model] if self.model in adapters else []
        salt = [] if self.salt is None else [self.salt]
        # The salt is the first block's only: all others follow it.
        return [[*adapter, *salt], *([adapter] * (blocks - 1 if adapter else 0))]


def token_ids(call: Call) -> Sequence[int] | None:
    """Those of the prompt, if it is a list of them."""
    if not _MORE_THAN_TOKENS.isdisjoint(call.body) or _is_kept_otherwise(call.body):
        return None
    prompt = call.body.get(_field(call))
    if not isinstance(prompt, Raw) or bytes(memoryview(prompt)[:1]) != b"[":
        return None
    if len(prompt) > MOST_BYTES:
        return None
    try:
        return _token_ids.decode(prompt)
    except msgspec.DecodeError:
        # Several prompts, or what engines will complain of.
        return None


def answered_ids(reply: Json) -> Sequence[int] | None:
    """Those that an engine answered for the prompt of a chat; None where it did not, or too many."""
    found = reply.get("prompt_token_ids")
    if not isinstance(found, Raw) or len(found) > MOST_BYTES:
        return None
    try:
        return _token_ids.decode(found)
    except msgspec.DecodeError:
        return None


def _field(call: Call) -> str:
    """Where the ids of a prompt stand."""
    return _FIELDS.get(call.path, "prompt")


def of_token_ids(call: Call, blocks: Sequence[int], tokens: Sequence[int]) -> IndexedPrompt:
    text = bytes(call.body[_field(call)])
    ends, counted = array("L"), 0
    for index in range(len(blocks)):
        # A token is complete where the next one is announced.
        counted += text.count(b",", index * BLOCK_BYTES, (index + 1) * BLOCK_BYTES)
        ends.append(counted)
    return IndexedPrompt(blocks, ends, tokens, call.model, call.value("cache_salt"))


def of_text(call: Call, blocks: Sequence[int], tokens: Sequence[int]) -> IndexedPrompt:
    text = _size(call.body, "messages") or _size(call.body, "prompt")
    # The index counts the last block of the tools as a whole one.
    whole = ceil(_size(call.body, "tools") / BLOCK_BYTES) + text / BLOCK_BYTES
    ends = array("L", (ceil(len(tokens) * (n + 1) / whole) for n in range(len(blocks))))
    return IndexedPrompt(blocks, ends, tokens, call.model, call.value("cache_salt"))


def is_text(call: Call) -> bool:
    """One text, of which an engine can tell the tokens.

    Not where there may be media: an engine would fetch them to tell, and their tokens do not say
    what they show.
    """
    if call.api is not None or _is_kept_otherwise(call.body):
        # Its messages, and what is written before them, are not those that /tokenize takes.
        return False
    messages = call.body.get("messages")
    if isinstance(messages, Raw):
        text = bytes(messages)
        return not any(sign in text for sign in _MEDIA)
    prompt = call.body.get("prompt")
    return isinstance(prompt, Raw) and bytes(memoryview(prompt)[:1]) == b'"'


def _is_kept_otherwise(body: Json) -> bool:
    return any(body.get(name) not in _NULLS for name in _KEPT_OTHERWISE)


def _size(body: Json, name: str) -> int:
    field = body.get(name)
    if field is None:
        return 0
    return len(memoryview(field)) if isinstance(field, Raw) else len(encode(field))
