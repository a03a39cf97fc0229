"""A prompt's token blocks as numbers of our own.

Engines name their blocks by hashes that depend on their version, algorithm and seed. Events bring
the tokens along, so each block gets a key that is the same for all engines that cut prompts into
blocks of the same size, and for prompts that no engine has seen:

    key[i] = xxh3(tokens of block i, seeded with key[i - 1])

and once more over what else makes the block what it is (its extra keys), if there is anything.
"""

from array import array
from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec
from xxhash import xxh3_64_intdigest

TOKEN_BYTES: Final = 4
_encode: Final = msgspec.msgpack.encode


def root(block_tokens: int) -> int:
    """What the first block follows: blocks of different sizes have nothing in common."""
    return block_tokens


def keys(
    tokens: Sequence[int], block_tokens: int, parent: int, extras: Sequence[Any] = ()
) -> Iterator[int]:
    """Keys of all whole blocks. Raise OverflowError for what is no token.

    Args:
        parent: The key before the first; `root` where a prompt begins.
        extras: For each block whatever else it depends on, None for nothing; may be shorter.
    """
    raw = memoryview(array("I", tokens)).cast("B")
    step = TOKEN_BYTES * block_tokens
    key = parent
    for index in range(len(tokens) // block_tokens):
        key = xxh3_64_intdigest(raw[index * step : (index + 1) * step], key)
        if index < len(extras) and extras[index]:
            key = xxh3_64_intdigest(_encode(extras[index]), key)
        yield key
