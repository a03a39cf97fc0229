"""Which prompts this process has sent to which engines, as bytes for its replicas, and theirs as what they say.

    {"version": 1, "gateway": "3f9c...", "sent": [["http://10.0.0.1:8100", null, <hashes>], ...]}

Of each prompt the hashes of its beginnings (scheduling/prefix/index.py), 8 bytes each, little-endian, and how
many of them the engine has after all; null for all. An engine is named as in entry.py. msgpack, as it is mostly
hashes: 2 KB for a prompt of 128 KB.
"""

import sys
from array import array
from collections.abc import Sequence
from typing import Annotated, Final

import msgspec

from pdgate.scheduling.prefix.index import MOST_BLOCKS

VERSION: Final = 1
BLOCK_BYTES: Final = 8

Kept = Annotated[int, msgspec.Meta(ge=0, le=MOST_BLOCKS)]


class BadPrompts(Exception):
    """A batch that no replica of this version writes; the message says why, for operators."""


class Sent(msgspec.Struct, frozen=True, array_like=True):
    """
    Attributes:
        engine: Its name.
        kept: Of the blocks, what it has after all; None for all of them.
    """

    engine: str
    kept: Kept | None
    blocks: Annotated[bytes, msgspec.Meta(max_length=2 * BLOCK_BYTES * MOST_BLOCKS)]

    def hashes(self) -> Sequence[int]:
        """Raises BadPrompts."""
        if len(self.blocks) % BLOCK_BYTES:
            raise BadPrompts(f"{len(self.blocks)} bytes are no whole number of hashes")
        return _ordered(array("Q", self.blocks))


class PromptBatch(msgspec.Struct, frozen=True):
    """
    Attributes:
        gateway: The same for all workers of one gateway.
    """

    version: int
    gateway: str
    sent: list[Sent]


class _PromptsVersion(msgspec.Struct):
    version: int


_batch: Final = msgspec.msgpack.Decoder(PromptBatch)
_version: Final = msgspec.msgpack.Decoder(_PromptsVersion)


def sent(engine: str, blocks: Sequence[int], kept: int | None) -> Sent:
    return Sent(engine, kept, _ordered(array("Q", blocks)).tobytes())


def encode(gateway: str, several: list[Sent]) -> bytes:
    return msgspec.msgpack.encode(PromptBatch(VERSION, gateway, several))


def decode(data: bytes) -> PromptBatch:
    """Raises BadPrompts."""
    try:
        version = _version.decode(data).version
        if version != VERSION:
            raise BadPrompts(f"it is of version {version}, and {VERSION} is known here")
        return _batch.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BadPrompts(str(error)) from error


def _ordered(hashes: "array[int]") -> "array[int]":
    if sys.byteorder == "big":
        hashes.byteswap()
    return hashes
