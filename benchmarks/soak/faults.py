"""What an engine does wrong, and what a call may come to by it.

Before the first byte the gateway asks another engine, so one such fault is nobody's loss; that goes
for all of an answer that is no stream. The same one twice in a call is taken for the call's own
fault, and three attempts are all there are. After a stream's first byte nothing can be done but to
say so.
"""

from collections.abc import Sequence
from enum import StrEnum
from random import Random
from typing import Final

PREFILLED: Final = "prefill"
WHOLE: Final = "whole answer"
STREAM: Final = "stream"
"""What an engine is asked for."""


class Fault(StrEnum):
    REFUSES = "answers 500"
    LEAVES = "closes the connection instead of answering"
    HALF_HEAD = "closes it within the head"
    HALF_ANSWER = "closes it within the answer"


class Plan:
    def __init__(self, share: float, seed: int) -> None:
        """`share` of all requests goes wrong."""
        self._share = share
        self._random = Random(seed)

    def draw(self) -> Fault | None:
        if self._random.random() >= self._share:
            return None
        return self._random.choice(tuple(Fault))


def may_fail(faults: Sequence[tuple[str, str]]) -> bool:
    """`faults`: (what was asked for, Fault) that one call has met, in order."""
    return must_fail(faults) or len(faults) > 1


def must_fail(faults: Sequence[tuple[str, str]]) -> bool:
    return (STREAM, Fault.HALF_ANSWER) in faults
