"""Rules that look at how long a prompt is, or at nothing at all.

    always                   split
    never                    decode engines read the prompts themselves
    uncached_tokens_above    split if what decode has not cached of the prompt is long, and prefill
                             would not keep it waiting

Source of the third and its numbers: NVIDIA Dynamo, "Conditional disaggregation"
(max_local_prefill_length, max_prefill_queue_size).
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final, Protocol

from pdgate.protocols.call import Call
from pdgate.protocols.instance import Instance, Role
from pdgate.scheduling.account import calls_there
from pdgate.scheduling.disaggregation.decision import (
    ALWAYS,
    LONG_PROMPT,
    NEVER,
    PREFILL_IS_BUSY,
    SHORT_PROMPT,
    Decision,
    Taken,
)
from pdgate.scheduling.endpoint import Endpoint

NOTHING_CACHED: Final[Mapping[str, int]] = {}


class Reads(Protocol):
    """A reservation to read a prompt, as far as rules go by it."""

    instance: Instance

    @property
    def unread_tokens(self) -> int:
        """Tokens of the prompt that the engine has still to compute."""


class SplitRule(ABC):
    prefill_may_answer: ClassVar[bool] = True
    """Whether a call for a single token may stay on prefill."""
    watches: ClassVar[bool] = False
    """Whether it needs to know the pace of decode engines, which costs a little per event."""
    reads_cached: ClassVar[bool] = False
    """Whether it asks what decode engines have cached, of which the gateway then keeps count."""
    fixed: ClassVar[Decision | None] = None
    """What it says of every call, without being asked; None where it has to look."""

    @abstractmethod
    def decide(
        self,
        call: Call,
        prefill: Endpoint,
        decodes: Sequence[Endpoint],
        cached: Mapping[str, int] = NOTHING_CACHED,
        may_keep: bool = True,
    ) -> Decision:
        """SPLIT or LOCAL.

        prefill: The engine that would be taken; the call is in its account already.
        decodes: Those that could follow it, one at least.
        cached: Instance id -> tokens of the prompt that it need not compute; only for a rule
            that reads it. Of the prefill engine only where that may keep the call.
        may_keep: The prefill engine has as much room for the call as those, and so may answer it, if it can.
        """

    def would_split(
        self,
        call: Call,
        prefill: Endpoint,
        decodes: Sequence[Endpoint],
        cached: Mapping[str, int] = NOTHING_CACHED,
        may_keep: bool = True,
    ) -> bool:
        """Whether it would split a call that is not decided for yet; asked as `decide` is.

        A rule for which each decision counts is not to count this one.
        """
        return self.decide(call, prefill, decodes, cached, may_keep).taken is Taken.SPLIT


_ALWAYS: Final = Decision(Taken.SPLIT, ALWAYS)
_NEVER: Final = Decision(Taken.LOCAL, NEVER)
_SHORT: Final = Decision(Taken.LOCAL, SHORT_PROMPT)
_BUSY: Final = Decision(Taken.LOCAL, PREFILL_IS_BUSY)
_LONG: Final = Decision(Taken.SPLIT, LONG_PROMPT)


class Always(SplitRule):
    fixed: ClassVar = _ALWAYS

    def decide(
        self,
        call: Call,
        prefill: Endpoint,
        decodes: Sequence[Endpoint],
        cached: Mapping[str, int] = NOTHING_CACHED,
        may_keep: bool = True,
    ) -> Decision:
        return _ALWAYS


class Never(SplitRule):
    prefill_may_answer: ClassVar = False
    fixed: ClassVar = _NEVER

    def decide(
        self,
        call: Call,
        prefill: Endpoint,
        decodes: Sequence[Endpoint],
        cached: Mapping[str, int] = NOTHING_CACHED,
        may_keep: bool = True,
    ) -> Decision:
        return _NEVER


@dataclass(frozen=True, slots=True)
class UncachedTokensAbove(SplitRule):
    """
    Attributes:
        tokens: Split only what is longer (an estimate: the gateway does not know the tokenizers).
        max_prefill_calls: Split only while fewer other calls, of any sender, are at the prefill
            engine; its share of a prefill queue is among them.
    """

    reads_cached: ClassVar = True

    tokens: int = 1000
    max_prefill_calls: int = 2

    def decide(
        self,
        call: Call,
        prefill: Endpoint,
        decodes: Sequence[Endpoint],
        cached: Mapping[str, int] = NOTHING_CACHED,
        may_keep: bool = True,
    ) -> Decision:
        if call.prompt_tokens <= self.tokens:
            return _SHORT
        # One of both roles may have been chosen to read the prompt as it has most of it.
        answering = (prefill, *decodes) if may_keep and prefill.serves(Role.DECODE) else decodes
        cached_enough = tuple(
            one.instance.id
            for one in answering
            if call.prompt_tokens - cached.get(one.instance.id, 0) <= self.tokens
        )
        if cached_enough:
            return Decision(Taken.LOCAL, SHORT_PROMPT, among=cached_enough)
        if calls_there(prefill) - 1 >= self.max_prefill_calls:
            return _BUSY
        return _LONG


def uncached_tokens(call: Call, decodes: Sequence[Endpoint], cached: Mapping[str, int]) -> int:
    """Uncached tokens of the prompt, where most of it is cached."""
    if not cached:
        return call.prompt_tokens
    return call.prompt_tokens - max(cached.get(decode.instance.id, 0) for decode in decodes)
