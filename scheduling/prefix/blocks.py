"""Hashes of a prompt's beginnings, one for each whole block of bytes.

    [{"role":"system","content":"You are ...     what the client sent
    |<--- 512 bytes --->|<--- 512 bytes --->|
    hash of the first   of the first two ...

Each number stands for all that comes before it, so two prompts that have one in common have all
before it in common, and what they share can be found by bisection. Bytes, not tokens: the gateway
does not know the tokenizers, and a tokenizer costs milliseconds where this costs microseconds.
Texts that differ only in how JSON spells them count as different, which costs a hit and nothing
else.

What comes before the prompt in the engine's cache counts as its beginning: the model (an adapter
is a model of its own), the salt that keeps tenants' caches apart, and the tools, which chat
templates write before the messages.

A conversation's next turn has the bytes of this one up to the bracket that closes the list. So
that bracket is left out, and so is the last block unless it is whole.
"""

from array import array
from collections.abc import Callable, Sequence
from struct import Struct
from typing import Any, Final

from msgspec.structs import force_setattr
from xxhash import xxh3_64_intdigest

from pdgate.protocols.call import BYTES_PER_TOKEN, Call, Raw, encode

BLOCK_BYTES: Final = 512
BLOCK_TOKENS: Final = BLOCK_BYTES // BYTES_PER_TOKEN
"""On the scale of a call's prompt_tokens."""

MOST_BLOCKS: Final = 8192
"""4 MB, or a million tokens: prompts that agree so far are taken for the same."""

NO_BLOCKS: Final[Sequence[int]] = ()

_BLOCKS: Final = Struct(f"{BLOCK_BYTES}s").iter_unpack
"""Cuts bytes into blocks, in half the time that slices of them take."""

BlocksOf = Callable[[Call], Sequence[int]]
"""The hashes of a call's prompt, 0 <= hash < 2**64, each of all that comes before its end."""

_MODEL: Final = xxh3_64_intdigest(b"model")

_BEFORE: Final = tuple(
    (name, name.encode())
    for name in (
        "cache_salt",
        "chat_template",
        "chat_template_kwargs",
        "documents",
        "instructions",
        "reasoning_effort",
        "system",
    )
)
"""Fields that change what an engine computes from its first token on, after the model."""

_SELDOM: Final = frozenset(name for name, _ in _BEFORE)


def blocks_of(call: Call) -> Sequence[int]:
    """Made once, when first asked for, and kept with the call and its retries."""
    found = call.blocks
    if found is None:
        found = hashed(call)
        # It is frozen for all readers; this only remembers what follows from it.
        force_setattr(call, "blocks", found)
    return found


def hashed(call: Call) -> Sequence[int]:
    body = call.body
    prompt = body.get("messages")
    if prompt is None:
        prompt = body.get("prompt")
    if prompt is None:
        prompt = body.get("input")
    if prompt is None:
        return NO_BLOCKS
    if "tools" not in body and type(prompt) is Raw and len(prompt) < BLOCK_BYTES:
        # Most calls of many services; there is no whole block in it.
        return NO_BLOCKS
    text, tools = _bytes_of(prompt), body.get("tools")
    model = body.get("model")
    before = 0 if model is None else xxh3_64_intdigest(_bytes_of(model), _MODEL)
    if not _SELDOM.isdisjoint(body):
        for name, mark in _BEFORE:
            field = body.get(name)
            if field is not None:
                before = xxh3_64_intdigest(_bytes_of(field), xxh3_64_intdigest(mark, before))
    blocks: list[int] = []
    if tools is not None:
        # Also its last block, be it short: the messages begin anew behind it.
        before = _hash(before, _bytes_of(tools), blocks, rest=True)
    # What follows is distinguished from tools that end like it.
    before = xxh3_64_intdigest(b"\0", before)
    _hash(before, text[: _end_of(text)], blocks, rest=False)
    return array("Q", blocks)


def _hash(before: int, text: memoryview, blocks: list[int], *, rest: bool) -> int:
    """Adds a hash for each block, seeded with that of all before it; returns the last."""
    add = blocks.append
    whole, room = len(text) // BLOCK_BYTES, MOST_BLOCKS - len(blocks)
    if whole > room:  # noqa: PLR1730 (a fifth of the time of min)
        whole = room
    whole *= BLOCK_BYTES
    for (block,) in _BLOCKS(text[:whole]):
        before = xxh3_64_intdigest(block, before)
        add(before)
    if rest and whole < len(text) and len(blocks) < MOST_BLOCKS:
        before = xxh3_64_intdigest(text[whole:], before)
        add(before)
    return before


def _end_of(text: memoryview) -> int:
    """Where what a longer prompt has in common with this one must end."""
    tail = bytes(text[-BLOCK_BYTES:])
    return len(text) - len(tail) + len(tail[:-1].rstrip())


def _bytes_of(field: Any) -> memoryview:
    if isinstance(field, Raw):
        return memoryview(field)
    return memoryview(encode(field))
