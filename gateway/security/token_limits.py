"""Token limits of an API key: how many tokens its calls may take in a minute, in a day, and in all.

    measure      tokens               prompt               generated
    a minute     tokens_per_minute    prompt_tokens_...    generated_tokens_...
    a day        tokens_per_day       prompt_tokens_...    generated_tokens_...
    in all       budget_tokens

A day is one of UTC. What is in a prompt and what is generated are counted apart, and so is what of a prompt
an engine had cached, which counts against the limits or does not (`count_cached`).
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple

MOST_TOKENS: Final = 10**12
"""Of a limit: what is counted has thousandths, in 8 bytes, and in Redis 53 bits."""

TOKENS: Final = 0
PROMPT: Final = 1
GENERATED: Final = 2


class Window(StrEnum):
    MINUTE = "minute"
    DAY = "day"
    TOTAL = "total"


class TokenLimit(NamedTuple):
    """
    Attributes:
        name: Of the key in a configuration.
        measure: TOKENS, PROMPT or GENERATED.
    """

    name: str
    window: Window
    measure: int
    most: int


_SLOTS: Final = (
    ("tokens_per_minute", Window.MINUTE, TOKENS),
    ("prompt_tokens_per_minute", Window.MINUTE, PROMPT),
    ("generated_tokens_per_minute", Window.MINUTE, GENERATED),
    ("tokens_per_day", Window.DAY, TOKENS),
    ("prompt_tokens_per_day", Window.DAY, PROMPT),
    ("generated_tokens_per_day", Window.DAY, GENERATED),
    ("budget_tokens", Window.TOTAL, TOKENS),
)
_LESS_THAN: Final = (
    ("prompt_tokens_per_minute", "tokens_per_minute"),
    ("generated_tokens_per_minute", "tokens_per_minute"),
    ("prompt_tokens_per_day", "tokens_per_day"),
    ("generated_tokens_per_day", "tokens_per_day"),
    ("tokens_per_minute", "tokens_per_day"),
    ("prompt_tokens_per_minute", "prompt_tokens_per_day"),
    ("generated_tokens_per_minute", "generated_tokens_per_day"),
    ("tokens_per_day", "budget_tokens"),
    ("prompt_tokens_per_day", "budget_tokens"),
    ("generated_tokens_per_day", "budget_tokens"),
    ("tokens_per_minute", "budget_tokens"),
)
"""A limit -> another that it cannot be above: it would never be reached, so one of the two is not meant."""


@dataclass(frozen=True, slots=True)
class TokenLimits:
    """Limits of tokens of one key; None for any number.

    Attributes:
        budget_tokens: In all, ever.
        count_cached: Whether tokens of a prompt that an engine had cached count as well.
        assumed_tokens: What a call is taken to generate at most that does not say it; None for all
            that its model can.
    """

    tokens_per_minute: int | None = None
    prompt_tokens_per_minute: int | None = None
    generated_tokens_per_minute: int | None = None
    tokens_per_day: int | None = None
    prompt_tokens_per_day: int | None = None
    generated_tokens_per_day: int | None = None
    budget_tokens: int | None = None
    count_cached: bool = True
    assumed_tokens: int | None = None

    def each(self) -> tuple[TokenLimit, ...]:
        """Those that there are, the shortest window first."""
        said = ((name, window, measure, getattr(self, name)) for name, window, measure in _SLOTS)
        return tuple(TokenLimit(*one) for one in said if one[3] is not None)

    def contradiction(self) -> str:
        """What of them cannot be meant, as a part of a sentence; empty if all can."""
        for less, more in _LESS_THAN:
            low, high = getattr(self, less), getattr(self, more)
            if low is not None and high is not None and low > high:
                return f"{less} {low} is more than {more} {high}, and would never be reached"
        if self.assumed_tokens is not None and not self.each():
            return "assumed_tokens without a limit of tokens has no meaning"
        if not self.count_cached and not self.each():
            return "count_cached without a limit of tokens has no meaning"
        return ""


NO_TOKEN_LIMITS: Final = TokenLimits()
