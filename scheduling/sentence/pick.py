"""The last word of a sentence: which of those that are kept, by how much they are preferred."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from math import exp
from random import Random

from pdgate.scheduling.candidate import Candidate

Score = Callable[[Candidate], float]
"""How much one is preferred, all in all; the more the better."""


def drawn(random: Random, equals: Sequence[Candidate]) -> Candidate:
    """As `random.choice`, which is two functions of Python and draws until it fits."""
    return equals[int(random.random() * len(equals))]


class Pick(ABC):
    def __init__(self, random: Random | None = None) -> None:
        self.random = random or Random()

    @abstractmethod
    def among(self, kept: Sequence[Candidate], score: Score) -> Candidate:
        """Of one at least. Those that are not scored cost nothing."""


class Best(Pick):
    """Equals are drawn, or an idle fleet would be one busy engine."""

    def among(self, kept: Sequence[Candidate], score: Score) -> Candidate:
        scores = list(map(score, kept))
        most = max(scores)
        equals = scores.count(most)
        if equals == 1:
            return kept[scores.index(most)]
        if equals == len(kept):
            return drawn(self.random, kept)
        return drawn(self.random, [c for c, of in zip(kept, scores, strict=True) if of == most])


class PowerOfTwo(Pick):
    """The better of two that are drawn: several gateways do not run to the same engine."""

    def among(self, kept: Sequence[Candidate], score: Score) -> Candidate:
        if len(kept) == 1:
            return kept[0]
        one, other = self.random.sample(kept, 2)
        return one if score(one) >= score(other) else other


class Softmax(Pick):
    """By lot, where whoever is better by `temperature` has e times as many chances."""

    def __init__(self, temperature: float, random: Random | None = None) -> None:
        """Raises ValueError unless the temperature is above 0."""
        super().__init__(random)
        if not temperature > 0:
            raise ValueError(f"a temperature must be above 0, not {temperature}")
        self._temperature = temperature

    def among(self, kept: Sequence[Candidate], score: Score) -> Candidate:
        scores = list(map(score, kept))
        most = max(scores)
        chances = [exp((of - most) / self._temperature) for of in scores]
        return self.random.choices(kept, chances)[0]
