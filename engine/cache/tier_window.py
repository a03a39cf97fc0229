"""Window of a KV tier between hosts: slots of one block each, in memory that the transfer layer moves.

An engine that serves copies blocks into its window and offers them in the messenger's words, whose block is a slot:

    asks                                   serves
      | Ask(key: names of blocks)      -->   reads the first of them that it has from its tiers into free slots
      | <-- Offered(slots, digests)          and grants this peer to read these, for as long as it said
      | read, by the transfer backend
      | Release                        -->   the slots are free, the grant is over

`digests` are the SHA-256 of the blocks, one behind the other, in `Offered.context`.
"""

import hashlib
import re
from collections.abc import Sequence
from typing import Final

import msgspec

from pdgate.transfer.messenger.errors import HandOverError, Why
from pdgate.transfer.messenger.shape import PageShape

PURPOSE: Final = "kv-tier"
DIGEST_BYTES: Final = hashlib.sha256().digest_size
MOST_NAMES: Final = 4096
"""In one Ask."""
_NAME: Final = re.compile(r"[0-9a-f]{64}")


def shape(block_bytes: int, slots: int) -> PageShape:
    return PageShape("kv-tier", 1, slots, 1, 1, block_bytes, "bytes", 1, planes=1)


def check(ours: PageShape, theirs: PageShape) -> None:
    """Raises HandOverError unless they differ in nothing but how many slots there are."""
    if msgspec.structs.replace(theirs, blocks=ours.blocks) != ours:
        raise HandOverError(
            Why.WRONG_SHAPE, f"a block has {ours.page_bytes} bytes here, and another shape there"
        )


def key_of(names: Sequence[str]) -> str:
    return " ".join(names)


def names_of(key: str) -> list[str]:
    """Raises ValueError for what is no list of names: they become names of files."""
    names = key.split(" ")
    if len(names) > MOST_NAMES or not all(map(_NAME.fullmatch, names)):
        raise ValueError("that is no list of names of blocks")
    return names


def digest(pages: memoryview | bytes) -> bytes:
    return hashlib.sha256(pages).digest()
