"""Sampling: logits -> the next token.

The order of the filters is vLLM's: what the answer may be, temperature, min_p, top_k, top_p.
Log-probabilities are those of the raw logits, before any filter.

Source: vLLM 0.32.0, v1/sample/sampler.py.
"""

from collections.abc import Collection
from copy import copy, deepcopy

import numpy as np
from numpy.typing import NDArray

from pdgate.engine.constrained.grammar import Mask
from pdgate.engine.model.weights import Floats
from pdgate.engine.request import Logprob, Sampling

# JSON has no infinity; vLLM writes impossible tokens so.
LEAST_LOGPROB = -9999.0


class Sampler:
    """Chooses the tokens of one answer; equal seeds and equal logits choose alike."""

    def __init__(self, sampling: Sampling) -> None:
        self._sampling = sampling
        self._random = np.random.default_rng(sampling.seed)

    def choose(
        self, logits: Floats, forbidden: Collection[int] = (), allowed: Mask | None = None
    ) -> int:
        """`logits` and `allowed` are [vocab]; some token that is allowed is not forbidden."""
        if allowed is not None:
            logits = np.where(allowed, logits, np.float32(-np.inf))
        if forbidden:
            logits = logits.copy()
            logits[list(forbidden)] = -np.inf
        if self._sampling.temperature == 0:
            return int(logits.argmax())
        shares = self._shares(logits)
        order = np.argsort(-shares, kind="stable")
        sums = np.cumsum(shares[order])
        # In the order of their ids: by probability two that are nearly as likely change places with
        # the last bits of a sum (seen: log-probabilities 5e-5 apart, by who shares the batch), and
        # the same number would then draw the other.
        kept = np.sort(self._cut(shares[order], sums, order))
        sums = np.cumsum(shares[kept])
        drawn = self._random.random() * sums[-1]
        return int(kept[min(int(np.searchsorted(sums, drawn, side="right")), len(kept) - 1)])

    def copy(self) -> "Sampler":
        """One that draws the same numbers from here on."""
        found = copy(self)
        found._random = deepcopy(self._random)
        return found

    def skip(self) -> None:
        """Another engine chose a token with this seed; the next one is drawn as if we had."""
        if self._sampling.temperature > 0:
            self._random.random()

    def _shares(self, logits: Floats) -> NDArray[np.float64]:
        """Probabilities, less those that are too unlikely beside the likeliest."""
        scaled = logits.astype(np.float64) / self._sampling.temperature
        shares: NDArray[np.float64] = np.exp(scaled - scaled.max())
        shares /= shares.sum()
        if self._sampling.min_p > 0:
            shares[shares < self._sampling.min_p * shares.max()] = 0
        return shares

    def _cut(
        self,
        shares: NDArray[np.float64],
        sums: NDArray[np.float64],
        order: NDArray[np.intp],
    ) -> NDArray[np.intp]:
        """The first top_k of them, and of these the fewest that reach top_p; all are sorted."""
        count = int(np.count_nonzero(shares))
        if self._sampling.top_k > 0:
            count = min(count, self._sampling.top_k)
        enough = self._sampling.top_p * sums[count - 1]
        count = min(count, int(np.searchsorted(sums[:count], enough)) + 1)
        return order[:count]


def logprob(logits: Floats, token: int, alternatives: int) -> Logprob:
    """Log-probability of `token`, and of the likeliest `alternatives` tokens."""
    shifted = logits - logits.max()
    all_of_them = np.maximum(shifted - np.log(np.exp(shifted).sum()), LEAST_LOGPROB)
    best = np.argsort(-all_of_them, kind="stable")[:alternatives]
    top = [(int(index), float(all_of_them[index])) for index in best]
    return Logprob(token, float(all_of_them[token]), top)
