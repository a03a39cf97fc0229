"""Context that decode may need beside the pages: a first token, a last hidden state, logits.

Pulled, it comes with the offer. Pushed, it is a counted write like a tile, into a slot that D
has set aside (inbox.py) from one that P has (outbox.py):

    slot    magic "PDCX" | bytes u32 | first token i64, -1 for none | the bytes
            little-endian; what is behind the bytes means nothing

Both sides say how much it may be when they meet. What the bytes are, only the engines know.
"""

import struct
from dataclasses import dataclass
from typing import Final

from pdgate.transfer.messenger.errors import HandOverError, Why

MAGIC: Final = b"PDCX"
_HEADER = struct.Struct("<4sIq")
_ALIGNED: Final = 64


@dataclass(frozen=True, slots=True)
class Context:
    """
    Attributes:
        first_token: What prefill sampled behind the prompt; None if that is left to decode.
    """

    first_token: int | None = None
    data: bytes = b""


NOTHING: Final = Context()


def slot_bytes(max_bytes: int) -> int:
    """What a context of up to `max_bytes` takes."""
    return -(-(_HEADER.size + max_bytes) // _ALIGNED) * _ALIGNED


def pack(context: Context) -> bytes:
    token = -1 if context.first_token is None else context.first_token
    return _HEADER.pack(MAGIC, len(context.data), token) + context.data


def unpack(slot: memoryview) -> Context:
    """What landed. Raises HandOverError for what `pack` has not made."""
    magic, length, token = _HEADER.unpack_from(slot)
    if magic != MAGIC or length > len(slot) - _HEADER.size or token < -1:
        raise HandOverError(Why.BROKEN, "the context that came is none")
    data = bytes(slot[_HEADER.size : _HEADER.size + length])
    return Context(None if token == -1 else token, data)
