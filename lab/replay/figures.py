"""Figures of a replay: what became of all calls together."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pdgate.lab.replay.outcome import ReplayOutcome
from pdgate.lab.simulator.spread import Spread, some
from pdgate.scheduling.policy_context import Targets

NOTICED_SECONDS = 0.05
"""A driver that is later than this at its slowest hundredth makes other loads than it was given."""


@dataclass(frozen=True, slots=True)
class Figures:
    """
    Attributes:
        calls: That were to be sent.
        goodput: Share of them that were answered whole and right, and within the targets.
        came_seconds: From the first call to the last.
        seconds: From the first call to the last answer's end.
        ttft: From sending a call to its first token.
        tpot: Between two tokens, on average of each call.
        itl: Between two pieces of a stream, of all calls.
        whole: From sending a call to its answer's end.
        late: From when a call was due to when it was sent: the driver's own fault.
        latest: The largest of these, in seconds.
        lost: Why calls have no right answer -> how many.
        prompt_tokens, answer_tokens: As the API counted them.
    """

    calls: int
    goodput: float
    came_seconds: float
    seconds: float
    ttft: Spread
    tpot: Spread
    itl: Spread
    whole: Spread
    late: Spread
    latest: float
    lost: Mapping[str, int]
    prompt_tokens: int
    answer_tokens: int

    @property
    def answered(self) -> int:
        return self.calls - sum(self.lost.values())

    @property
    def doubt(self) -> str:
        """Why the figures should not be believed; "" for nothing."""
        if self.late.p99 > NOTICED_SECONDS:
            return (
                f"the driver itself was late, by {self.late.p99 * 1000:.0f} ms at the slowest "
                "hundredth: this machine cannot send so much so fast, or has other work"
            )
        return ""


def figures(outcomes: Sequence[ReplayOutcome], targets: Targets) -> Figures:
    """Figures of one call at least."""
    sent = [one for one in outcomes if one.sent]
    late = [one.late for one in sent]
    return Figures(
        calls=len(outcomes),
        goodput=sum(one.good(targets) for one in outcomes) / len(outcomes),
        came_seconds=outcomes[-1].ask.at - outcomes[0].ask.at,
        seconds=max(some(one.ended for one in outcomes), default=0.0),
        ttft=Spread.of(some(one.ttft for one in outcomes)),
        tpot=Spread.of(some(one.tpot for one in outcomes)),
        itl=Spread.of(gap for one in outcomes for gap in one.gaps),
        whole=Spread.of(some(one.whole for one in outcomes)),
        late=Spread.of(late),
        latest=max(late, default=0.0),
        lost=dict(sorted(Counter(one.why for one in outcomes if one.why).items())),
        prompt_tokens=sum(one.prompt_tokens for one in outcomes),
        answer_tokens=sum(one.tokens for one in outcomes),
    )
