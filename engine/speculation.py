"""Guessing tokens before the model has computed them: a draft head, and what it goes on from.

    position     p - 1            p            p + 1
    token        before           newest       ?              all known but the last
    state        of the model     --           --             what the last layer made of `before`

The model, asked for `newest` alone, would say which token follows. The head guesses it without asking: in
the state, it changes the token that was read for the newest one,

    guess = head(state - embedding(before) + embedding(newest))

and so on from its guess. That is right as far as what attention brings changes little from one token to the next. As
with a module for multi-token prediction (DeepSeek-V3, section 2.2) a guess takes the model's own hidden state and
the next token's embedding, and shares embedding and head with the model; here nothing of it is trained.

The guesses are computed in one step with `newest`, and each is kept that is what would have been chosen anyway:
the answer is the same with and without.

A state also crosses from a prefill engine that stops before the last token of the prompt, as a context beside the pages:

    magic "PDST" | tokens u32 | float32 * hidden        little-endian; `tokens`: of the prompt, up to the state's
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from pdgate.engine.choosing import TokenChoice
from pdgate.engine.model.llama import Llama
from pdgate.engine.model.weights import Floats

MAGIC: Final = b"PDST"
_HEADER: Final = struct.Struct("<4sI")


@dataclass(frozen=True, slots=True)
class TokenState:
    """
    Attributes:
        tokens: Of the sequence, up to the one that it is of.
        row: What the last layer made of that one, [hidden].
        from_peer: A prefill engine computed it.
    """

    tokens: int
    row: Floats
    from_peer: bool = False


def state_bytes(hidden_size: int) -> int:
    """What a state takes as a context."""
    return _HEADER.size + 4 * hidden_size


def packed(state: TokenState) -> bytes:
    return _HEADER.pack(MAGIC, state.tokens) + state.row.astype("<f4").tobytes()


def unpacked(data: bytes, hidden_size: int) -> TokenState | None:
    """What came from a peer; None for what is no state of a model of this size."""
    if len(data) != state_bytes(hidden_size):
        return None
    magic, tokens = _HEADER.unpack_from(data)
    row = np.frombuffer(data, "<f4", offset=_HEADER.size).astype(np.float32)
    if magic != MAGIC or not np.isfinite(row).all():
        return None
    return TokenState(tokens, row, from_peer=True)


def guesses(
    decoder: Llama, state: TokenState, tokens: Sequence[int], choice: TokenChoice, most: int
) -> list[int]:
    """Up to `most` tokens that may follow. `state` is of the last of `tokens` but one; `choice` is used up."""
    before, newest = tokens[-2], tokens[-1]
    row = state.row
    found: list[int] = []
    while len(found) < most:
        row = row - decoder.embedding(before) + decoder.embedding(newest)
        guess = choice.choose(decoder.head(row[None])[0])
        if guess is None:
            break
        found.append(guess)
        if guess in choice.ends:
            break
        choice.take(guess)
        before, newest = newest, guess
    return found
