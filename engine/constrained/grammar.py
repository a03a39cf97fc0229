"""Grammar of an answer, followed token by token: a mask over the tokens that may come next."""

from collections import OrderedDict
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pdgate.engine.constrained.automaton import Automaton, Expression, State
from pdgate.engine.constrained.vocabulary import Vocabulary
from pdgate.engine.model.tokenizer import Tokenizer

MOST_GRAMMARS: Final = 16
MOST_MASK_BYTES: Final = 16 << 20
"""Of one grammar."""

Mask = NDArray[np.bool_]


class Grammar:
    """What an answer may be, shared by all answers to the same question.

    Raises automaton.TooBig.
    """

    def __init__(self, expression: Expression, vocabulary: Vocabulary) -> None:
        self.automaton = Automaton(expression)
        self.vocabulary = vocabulary
        self._masks: dict[State, Mask] = {}

    def mask(self, state: State) -> Mask:
        """[vocab], true for the tokens that may come; an end only where the text may end."""
        allowed = self._masks.get(state)
        if allowed is None:
            allowed = np.zeros(self.vocabulary.size, np.bool_)
            for first in self.automaton.next_bytes(state):
                for token, value in self.vocabulary.by_first_byte.get(first, ()):
                    allowed[token] = self.after(state, value) is not None
            if self.automaton.accepts(state):
                allowed[list(self.vocabulary.ends)] = True
            if len(self._masks) * self.vocabulary.size >= MOST_MASK_BYTES:
                self._masks.clear()
            self._masks[state] = allowed
        return allowed

    def after(self, state: State, value: bytes) -> State | None:
        at: State | None = state
        for byte in value:
            if at is None:
                return None
            at = self.automaton.follow(at, byte)
        return at


class Guide:
    """One answer on its way through a grammar."""

    def __init__(self, grammar: Grammar) -> None:
        self._grammar = grammar
        self._state = grammar.automaton.start

    @property
    def mask(self) -> Mask:
        return self._grammar.mask(self._state)

    def goes_on(self, without: Collection[int]) -> bool:
        """Whether a token may come that is none of these."""
        rest = self.mask.copy()
        rest[list(without)] = False
        return bool(rest.any())

    def advance(self, token: int) -> None:
        """A token that the mask allows. After an end there is nothing to follow."""
        value = self._grammar.vocabulary.bytes_of(token)
        if value is None:
            return
        state = self._grammar.after(self._state, value)
        assert state is not None, "a token was sampled that the mask forbids"
        self._state = state


@dataclass
class Grammars:
    """Those of an engine, the last used ones kept: their masks are the dear part."""

    _kept: OrderedDict[str, Grammar] = field(default_factory=OrderedDict)
    _vocabulary: Vocabulary | None = None

    def get(
        self, key: str, tokenizer: Tokenizer, size: int, expression: Callable[[], Expression]
    ) -> Grammar:
        """`key` says the same as `expression`. Raises what that raises, and TooBig."""
        if key not in self._kept:
            if self._vocabulary is None:
                self._vocabulary = Vocabulary(tokenizer, size)
            self._kept[key] = Grammar(expression(), self._vocabulary)
        self._kept.move_to_end(key)
        while len(self._kept) > MOST_GRAMMARS:
            self._kept.popitem(last=False)
        return self._kept[key]
