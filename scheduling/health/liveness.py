"""Liveness verdict: whether an engine whose legs are silent is slow, or works no more. Pure.

Silence alone proves nothing: a prompt may take minutes to read, an answer that is not streamed says
nothing until it is whole. So an engine that is silent on all its legs is asked, out of turn, and
only all of these together condemn it:

    GONE      its port refuses, twice in a row: the process has ended, or it is about to and has left
              its connections behind (vLLM's default at SIGTERM). A stream that had begun is proof of
              that after GONE_SHARE of `seconds`; else it takes all of them, as an engine that
              finishes what it has with a closed port may be at an answer that is not streamed
    FROZEN    a fresh connection gets no answer to GET /health for `seconds`: its API server is
              stopped, or there is no way to it any more
    STUCK     it answers, but nothing that its engine core counts has moved for `seconds`, and it was
              silent for a second more, though it has work: the core is stopped, or one of the workers
              that it waits for

A byte on any leg, a leg that ended well and a counter that moved are signs of life of the whole
engine. `seconds` become more where its pace makes more plausible: SLACK times as long as the longest prompt
that waits there should take to be read, as a single prompt shows nothing until it is read, or as a
step of it should take, and half of `seconds` besides.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Final

SLACK: Final = 4.0
"""Times what is expected: what a latency model calls strange (scheduling/latency/model.py)."""

UNKNOWN_SECONDS_PER_TOKEN: Final = 0.002
"""Of reading, where no prompt's time is known yet: slower than a CPU."""

GONE_SHARE: Final = 0.3

STUCK_MORE_SECONDS: Final = 1.0
"""So that of two engines that wait for each other, the one that does not answer is found first."""


class LivenessVerdict(Enum):
    ALIVE = "alive"
    GONE = "gone"
    FROZEN = "frozen"
    STUCK = "stuck"


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is known of one engine that is silent. All in seconds until now.

    Attributes:
        silent: Since a sign of life, or since the leg that has waited longest was sent.
        refusing: From the first to the last connection in a row that its port refused.
        mute: Since the question that it has not answered; 0 if it answered the last one.
        still: Between the first and the last look at counters that have not moved; 0 where they are
            unknown, or where they need not move.
        expected: How long its longest unread prompt should take to be read.
        step: How long it should take from one token of an answer to the next.
        broken_stream: Among its silent legs is a stream that had begun.
    """

    silent: float
    refusing: float = 0.0
    mute: float = 0.0
    still: float = 0.0
    expected: float = 0.0
    step: float = 0.0
    broken_stream: bool = False


def bound_seconds(seconds: float, expected: float) -> float:
    """Bound of silence, for an engine that should say something after `expected` seconds."""
    return max(seconds, seconds / 2 + SLACK * expected)


def verdict(seen: Evidence, seconds: float) -> LivenessVerdict:
    if seen.refusing > 0:
        enough = GONE_SHARE * seconds if seen.broken_stream else seconds
        return (
            LivenessVerdict.GONE
            if seen.silent >= max(enough, SLACK * seen.step)
            else LivenessVerdict.ALIVE
        )
    bound = bound_seconds(seconds, max(seen.expected, seen.step))
    if seen.silent < bound:
        return LivenessVerdict.ALIVE
    if seen.mute >= bound:
        return LivenessVerdict.FROZEN
    if seen.still >= bound and seen.silent >= bound + STUCK_MORE_SECONDS:
        return LivenessVerdict.STUCK
    return LivenessVerdict.ALIVE
