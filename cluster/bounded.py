"""Bodies, as far as they may go: who sends them, as any writer of a store, can make them as long as it likes.

whole(pieces, most_bytes)      all of it
lines(pieces, most_bytes)      one after the other, none longer than that
parsed(text)                   its JSON
"""

from collections.abc import AsyncIterator
from typing import Any

import msgspec


class TooLong(Exception):
    """The message says what, for operators."""


async def whole(pieces: AsyncIterator[bytes], most_bytes: int) -> bytes:
    """Raises TooLong."""
    found = bytearray()
    async for piece in pieces:
        found += piece
        if len(found) > most_bytes:
            raise TooLong(f"an answer has more than {most_bytes} bytes")
    return bytes(found)


async def lines(pieces: AsyncIterator[bytes], most_bytes: int) -> AsyncIterator[bytes]:
    """Lines without empty ones, and without what was left when the pieces ended. Raises TooLong.

    Not by httpx2, which also ends lines at U+0085, as it may stand in an annotation.
    """
    rest = bytearray()
    async for piece in pieces:
        rest += piece
        if b"\n" not in piece:
            if len(rest) > most_bytes:
                raise TooLong(f"an event has more than {most_bytes} bytes")
            continue
        *complete, last = rest.split(b"\n")
        rest = bytearray(last)
        for line in complete:
            if len(line) > most_bytes:
                raise TooLong(f"an event has more than {most_bytes} bytes")
            if line:
                yield bytes(line)


def parsed(text: bytes) -> Any:
    """Raises ValueError."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(str(error)) from None
