"""Prompts of the lengths of a trace, which begin alike where the trace's do.

A block of the trace becomes a run of tokens that its hash alone decides, so calls that share
blocks share the beginning of their prompts, and what engines find cached is what they found then.
What comes after the last full block is a call's own.

    ids     token ids; exact lengths with any model, as none is split or joined
    text    letters; exact where a token is a byte (the reference engine), else about so long
"""

from collections.abc import Callable
from functools import lru_cache
from random import Random
from typing import Final, Literal

import msgspec

from pdgate.lab.simulator.trace import BLOCK_TOKENS, TraceCall

Kind = Literal["ids", "text"]

LOWEST_ID, HIGHEST_ID = 100, 227
"""Of 128 that each model has as ordinary tokens."""

KEPT_BLOCKS: Final = 1 << 15
_IDS: Final = tuple(b"%d" % id for id in range(LOWEST_ID, HIGHEST_ID + 1))
_LETTERS: Final = bytes(b"abcdefghijklmnopqrstuvwxyz .,?!a"[byte % 32] for byte in range(256))


class Prompts:
    """
    Args:
        block_tokens: That a block of the trace becomes; less than there for small engines.
        seed: Another one makes other prompts, so that nothing is cached of an earlier replay.
    """

    def __init__(self, kind: Kind, block_tokens: int = BLOCK_TOKENS, seed: int = 0) -> None:
        self._kind = kind
        self._block_tokens = block_tokens
        self._seed = seed
        drawn: Callable[[str, int], bytes] = self._ids if kind == "ids" else self._text
        self._drawn = lru_cache(KEPT_BLOCKS)(drawn)

    def tokens(self, ask: TraceCall) -> int:
        """Tokens of the prompt that is sent."""
        return max(1, round(ask.prompt_tokens * self._block_tokens / BLOCK_TOKENS))

    def of(self, number: int, ask: TraceCall) -> msgspec.Raw:
        """The prompt of the trace's call with this number, as JSON."""
        blocks = [self._drawn(f"{block:x}", self._block_tokens) for block in ask.blocks]
        left = self.tokens(ask) - self._block_tokens * len(blocks)
        if left > 0:
            tail = self._ids if self._kind == "ids" else self._text
            blocks.append(tail(f"call {number}", left))
        if self._kind == "ids":
            return msgspec.Raw(b"[" + b",".join(blocks) + b"]")
        return msgspec.Raw(b'"' + b"".join(blocks) + b'"')

    def _ids(self, name: str, count: int) -> bytes:
        return b",".join([_IDS[byte & 127] for byte in self._bytes(name, count)])

    def _text(self, name: str, count: int) -> bytes:
        return self._bytes(name, count).translate(_LETTERS)

    def _bytes(self, name: str, count: int) -> bytes:
        return Random(f"{self._seed}/{name}").randbytes(count)
