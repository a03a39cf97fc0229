"""Pickers, the last step of a pipeline: one of the engines that the filters left, by their scores.

Plugins may have their own: compiled classes let interpreted ones inherit from them only if they say so.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from math import exp, floor, inf
from random import Random

from mypy_extensions import mypyc_attr

from pdgate.protocols.call import Call
from pdgate.scheduling.decision_trace import HIGHEST_SCORE, Rule
from pdgate.scheduling.endpoint import Endpoint

Score = Callable[[Call, Endpoint], float]
"""How much one is preferred, all in all; the more the better."""


def drawn(random: Random, equals: Sequence[Endpoint]) -> Endpoint:
    """As `random.choice`, which is two functions of Python and draws until it fits."""
    return equals[floor(random.random() * len(equals))]


@mypyc_attr(allow_interpreted_subclasses=True)
class Picker(ABC):
    """The last step: one of those that the filters left, by their scores."""

    def __init__(self, random: Random | None = None) -> None:
        self.random = random or Random()

    @abstractmethod
    def among(self, call: Call, kept: Sequence[Endpoint], score: Score) -> Endpoint:
        """Of one at least. Those that are not scored cost nothing."""

    def rule(self) -> Rule:
        """What a reader of the scores can say of its choice; nothing of one that draws lots by them."""
        return ()


@mypyc_attr(allow_interpreted_subclasses=True)
class Best(Picker):
    """Equals are drawn, or an idle fleet would be one busy engine."""

    def among(self, call: Call, kept: Sequence[Endpoint], score: Score) -> Endpoint:
        most, best = -inf, kept[0]
        equals: list[Endpoint] | None = None
        for one in kept:
            its = score(call, one)
            if its > most:
                most, best, equals = its, one, None
            elif its == most:
                if equals is None:
                    equals = [best, one]
                else:
                    equals.append(one)
        return best if equals is None else drawn(self.random, equals)

    def rule(self) -> Rule:
        return HIGHEST_SCORE


@mypyc_attr(allow_interpreted_subclasses=True)
class PowerOfTwo(Picker):
    """The better of two that are drawn: several gateways do not run to the same engine."""

    def among(self, call: Call, kept: Sequence[Endpoint], score: Score) -> Endpoint:
        if len(kept) == 1:
            return kept[0]
        one, other = self.random.sample(kept, 2)
        return one if score(call, one) >= score(call, other) else other


@mypyc_attr(allow_interpreted_subclasses=True)
class Softmax(Picker):
    """By lot, where one that is better by `temperature` has e times as many chances."""

    def __init__(self, temperature: float, random: Random | None = None) -> None:
        """Raises ValueError unless the temperature is above 0."""
        super().__init__(random)
        if not temperature > 0:
            raise ValueError(f"a temperature must be above 0, not {temperature}")
        self._temperature = temperature

    def among(self, call: Call, kept: Sequence[Endpoint], score: Score) -> Endpoint:
        scores = [score(call, one) for one in kept]
        most = max(scores)
        chances = [exp((of - most) / self._temperature) for of in scores]
        return self.random.choices(kept, chances)[0]
