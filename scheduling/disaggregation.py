"""Is a call worth splitting? Asked for every call that could be.

    always                   yes
    never                    no: decode engines read the prompts themselves
    uncached_tokens_above    if its prompt is long, and prefill would not keep it waiting

Reading a short prompt on decode disturbs its streams less than a hand-over costs, and a
prefill engine with a queue is no help. Source of the third rule and its numbers: NVIDIA
Dynamo, "Conditional disaggregation" (max_local_prefill_length, max_prefill_queue_size).
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Final

SHORT_PROMPT: Final = "short prompt"
PREFILL_IS_BUSY: Final = "prefill is busy"
NEVER: Final = "never asked for"


class Rule(ABC):
    @abstractmethod
    def why_not(self, uncached_tokens: int, prefill_calls: int) -> str | None:
        """The reason to let decode do it all, one of a few fixed ones; None to split.

        uncached_tokens: Of the prompt, that decode would have to compute (an estimate).
        prefill_calls: Other calls at the prefill engine that would be taken.
        """


class Always(Rule):
    def why_not(self, uncached_tokens: int, prefill_calls: int) -> str | None:
        return None


class Never(Rule):
    def why_not(self, uncached_tokens: int, prefill_calls: int) -> str | None:
        return NEVER


@dataclass(frozen=True, slots=True)
class UncachedTokensAbove(Rule):
    """
    Attributes:
        tokens: Split only what is longer.
        max_prefill_calls: Split only while fewer calls are at the prefill engine.
    """

    tokens: int = 1000
    max_prefill_calls: int = 2

    def why_not(self, uncached_tokens: int, prefill_calls: int) -> str | None:
        if uncached_tokens <= self.tokens:
            return SHORT_PROMPT
        if prefill_calls >= self.max_prefill_calls:
            return PREFILL_IS_BUSY
        return None
