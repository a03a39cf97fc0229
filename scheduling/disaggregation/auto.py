"""Whatever is expected to give the first token sooner.

    split   prefill reads what waits there and this prompt, then decode takes the KV over
    local   decode reads what it has to read already and this prompt

Both from what the same engines took lately (`Speed`), in estimated tokens. Until enough was
seen of both ways, thresholds decide. And since a way that is never taken is never measured
again, one call in LOOK_EVERY goes the other way: locally only if its prompt is short, so
that no stream on decode is held up for a look.

Only streams tell when an answer begins; other calls are decided for, but teach nothing of decode.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from pdgate.protocols.call import Call
from pdgate.scheduling.candidate import Candidate
from pdgate.scheduling.disaggregation.decision import MEASURING, SOONER, Decision, Taken
from pdgate.scheduling.disaggregation.rules import Rule, UncachedTokensAbove

LOOK_EVERY: Final = 50


class Auto(Rule):
    def __init__(self, thresholds: UncachedTokensAbove) -> None:
        """`thresholds`: what decides until both ways are known."""
        self._thresholds = thresholds
        self._last = Taken.SPLIT
        self._times = 0
        """How often in a row that was decided."""

    def decide(self, call: Call, prefill: Candidate, decodes: Sequence[Candidate]) -> Decision:
        split, local = split_seconds(call, prefill, decodes), local_seconds(call, decodes)
        if split is None or local is None:
            return self._without_knowing(call, prefill, decodes, split, local)
        sooner = Taken.LOCAL if local < split else Taken.SPLIT
        self._times = self._times + 1 if sooner is self._last else 1
        self._last = sooner
        if self._times >= LOOK_EVERY:
            other = Taken.SPLIT if sooner is Taken.LOCAL else Taken.LOCAL
            if self._may_look(other, call, prefill, decodes):
                self._times = 0
                return Decision(other, MEASURING, split, local)
        return Decision(sooner, SOONER, split, local)

    def _without_knowing(
        self,
        call: Call,
        prefill: Candidate,
        decodes: Sequence[Candidate],
        split: float | None,
        local: float | None,
    ) -> Decision:
        for other, known in ((Taken.SPLIT, split), (Taken.LOCAL, local)):
            if known is None and self._may_look(other, call, prefill, decodes):
                return Decision(other, MEASURING, split, local)
        return self._thresholds.decide(call, prefill, decodes)

    def _may_look(
        self, way: Taken, call: Call, prefill: Candidate, decodes: Sequence[Candidate]
    ) -> bool:
        """Whether a call teaches something of this way, and disturbs nobody there."""
        if not call.streams:
            return False
        if way is Taken.SPLIT:
            return prefill.calls == 1
        short = call.prompt_tokens <= self._thresholds.tokens
        return short and not any(decode.unread_tokens for decode in decodes)


def split_seconds(call: Call, prefill: Candidate, decodes: Sequence[Candidate]) -> float | None:
    """Until the first token, if prefill reads the prompt; the call waits there already."""
    reading = prefill.reading.expect(prefill.unread_tokens)
    loading = _least(decode.loading.expect(call.prompt_tokens) for decode in decodes)
    return None if reading is None or loading is None else reading + loading


def local_seconds(call: Call, decodes: Sequence[Candidate]) -> float | None:
    """Until the first token, if the decode engine that is soonest reads the prompt."""
    return _least(
        decode.reading.expect(decode.unread_tokens + call.prompt_tokens) for decode in decodes
    )


def _least(expected: Iterable[float | None]) -> float | None:
    return min((seconds for seconds in expected if seconds is not None), default=None)
