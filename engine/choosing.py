"""Which token comes next: sampling within what the answer may be, and not its end too early."""

from copy import copy
from typing import Final

from pdgate.engine.constrained.grammar import Guide
from pdgate.engine.model.weights import Floats
from pdgate.engine.request import Sampling
from pdgate.engine.sampling import Sampler


class TokenChoice:
    """Choice of the tokens of one answer, as far as it has come.

    Attributes:
        ends: Tokens that end the answer.
        count: Tokens that it has.
    """

    def __init__(self, sampling: Sampling, eos_ids: frozenset[int]) -> None:
        self._min_tokens: Final = sampling.min_tokens
        self._sampler = Sampler(sampling)
        self._guide = Guide(sampling.grammar) if sampling.grammar is not None else None
        # After the end of what the answer has to be, nothing else may come.
        ignored = sampling.ignore_eos and self._guide is None
        self.ends = (frozenset() if ignored else eos_ids) | sampling.stop_token_ids
        self.count = 0

    def ahead(self) -> "TokenChoice":
        """What would be chosen from here on, with the same random numbers; ours stays where it is."""
        found = copy(self)
        found._sampler = self._sampler.copy()
        found._guide = copy(self._guide)
        return found

    def choose(self, logits: Floats) -> int | None:
        """Choose from `logits` [vocab]; `take` follows. None if the model has no token that may come."""
        allowed = None if self._guide is None else self._guide.mask
        if allowed is not None and not allowed.any():
            return None
        return self._sampler.choose(logits, self.ends if self._too_early else (), allowed)

    def adopts(self, token: int) -> bool:
        """Whether a token that another engine chose may come next; `take` follows if so."""
        if token in self.ends and self._too_early:
            return False
        if self._guide is not None and not self._guide.mask[token]:
            return False
        self._sampler.skip()
        return True

    def take(self, token: int) -> None:
        self.count += 1
        if self._guide is not None:
            self._guide.advance(token)

    @property
    def _too_early(self) -> bool:
        """To end; what has to end here is never too early."""
        if self.count >= self._min_tokens:
            return False
        return self._guide is None or self._guide.goes_on(without=self.ends)
