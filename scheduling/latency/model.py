"""Latency model of one instance: how long it will take; None for what is not known yet.

    endpoint.latency.prefill_seconds(endpoint.unread_tokens + uncached_tokens)
    endpoint.latency.step_seconds(endpoint.answering + 1, endpoint.tokens + prompt_tokens)

The queue is part of it: a prompt is read when those before it are, so what is learnt is how
long everything took that was unread when the call came, itself included. That needs nothing of
the engine, and has in it how many prompts it reads at once.

What comes back is asked for so often that it must be cheap: a line that was fitted before.

A family is the instances that are alike: the same models, role and protocol.

One that has not shown yet how fast it is, is taken to be as fast as the middle one of those that
have; so a new instance is neither avoided nor overrun. And by how much long prompts take longer
(quadratic.py) is a matter of the model, so all learn it together.

One that gets no call teaches nothing: if it was slow once, as when it had just started, no policy would
choose it again. So one that was idle for OVERLOOKED choices is taken to be as fast as the quickest of its
family. When that brings it a call, what was learnt before counts little from then on. If it is slow indeed, twice
as many choices pass before the next trial, up to MOST_OVERLOOKED.

Nothing is learnt twice for this: the middle one is looked for when an unknown one is asked, and
then kept until one more is known, or it has been asked for often.
"""

from collections.abc import Hashable, Iterable
from typing import Final

from pdgate.scheduling.latency.quadratic import SHORT, QuadraticTerm
from pdgate.scheduling.latency.rate import ENOUGH, Accuracy, Rate
from pdgate.scheduling.latency.step_time import StepTime

TYPICAL_TOKENS: Final = 1000
"""Of the prompt by which speeds are compared."""

LOOK_EVERY: Final = 1000
"""Questions, as the middle one changes its mind, too."""

OVERLOOKED: Final = 32
MOST_OVERLOOKED: Final = 4096

SLOW: Final = 2.0
"""Times what the quickest of the family takes: a trial that takes longer has found a slow engine."""


class LatencyModel:
    """Expectations of one instance, each learnt from what was seen of it.

    Attributes:
        prefill_rate: How long it takes to read what was unread when a call came.
        loading_rate: How long it takes, as decode, from the end of prefill to the first token.
        step_time: How long its steps take.
        prefill_accuracy: Of `prefill_seconds`, asked when a call came.
        family: Engines that are alike.
        overlooked: For how many choices it was idle since it had a call, where a policy counts that.
    """

    __slots__ = (
        "_patience", "_tried", "family", "loading_rate", "overlooked", "prefill_accuracy",
        "prefill_rate", "step_time",
    )  # fmt: skip

    def __init__(
        self,
        prefill_rate: Rate | None = None,
        loading_rate: Rate | None = None,
        step_time: StepTime | None = None,
    ) -> None:
        self.prefill_rate = prefill_rate or Rate()
        self.loading_rate = loading_rate or Rate(level=True)
        self.step_time = step_time or StepTime()
        self.prefill_accuracy = Accuracy()
        self.overlooked = 0
        self._patience = OVERLOOKED
        self._tried = False
        self.family = Family()
        self.family.join(self)

    def belongs_to(self, family: "Family") -> None:
        """What it has learnt itself stays."""
        if family is not self.family:
            self.family.leave(self)
            self.family = family
            family.join(self)

    # What is asked.

    def prefill_seconds(self, uncached_tokens: int, squares: float | None = None) -> float | None:
        """Until so many prompt tokens have been read, beginning now: those that wait, and more.

        `squares`: the sum of squares of their prompts, as attention has to do with; None for one
        prompt.
        """
        rate = self.prefill_rate
        if rate.seen < ENOUGH:
            like = self.family.prefill_rate()
            if like is None:
                return None
            rate = like
        elif self.overlooked > self._patience:
            rate = self.family.quickest() or rate
        if squares is None:
            squares = float(uncached_tokens) * uncached_tokens
        # `QuadraticTerm.straight` and `Rate.expect` of a known one, without a call of either: this is
        # done for each endpoint of each call.
        if not rate.fresh:
            rate.fit()
        straight = uncached_tokens + self.family.quadratic.per_token * squares
        return rate.fixed + rate.per_token * straight

    def loading_seconds(self, tokens: int) -> float | None:
        """From the end of prefill to decode's first token, for a prompt of so many."""
        if self.loading_rate.seen >= ENOUGH:
            return self.loading_rate.expect(tokens)
        like = self.family.loading_rate()
        return None if like is None else like.expect(tokens)

    def step_seconds(self, batch: int, context_tokens: int) -> float | None:
        """Between two tokens of an answer, of so many answers with so much context together.

        What only the engine itself has said is believed as far as it makes it no quicker than the
        middle one of its kind, or an engine that says that no step takes any time would get all
        calls.
        """
        seconds = self.step_time.step_seconds(batch, context_tokens)
        if seconds is not None and self.step_time.seen:
            return seconds
        like = self.family.stepping()
        if like is None or like is self:
            return seconds
        of_its_kind = like.step_time.step_seconds(batch, context_tokens)
        if seconds is None or of_its_kind is None:
            return of_its_kind if seconds is None else seconds
        return max(seconds, of_its_kind)

    def longer_seconds(self, tokens: int) -> float:
        """By how much each answer gets longer if the engine reads so many tokens meanwhile."""
        return self.step_time.longer_seconds(tokens)

    # What was seen.

    def has_call(self) -> None:
        """It is to read a prompt, so that it will be seen how long that takes."""
        if self.overlooked > self._patience:
            self.prefill_rate.forget()
            self._tried = True
        self.overlooked = 0

    def has_read(self, tokens: int, squares: float, seconds: float, expected: float | None) -> None:
        """All that was unread when a call came; `expected`: what was said to be then."""
        if expected is not None:
            self.prefill_accuracy.compare(expected, seconds)
        quadratic, rate = self.family.quadratic, self.prefill_rate
        # `QuadraticTerm.straight`, and what `learn` would not learn from: neither is called each time.
        believed = rate.learn(tokens + quadratic.per_token * squares, seconds, expected)
        if tokens >= SHORT:
            quadratic.learn(tokens, squares, believed)
        if rate.seen == ENOUGH:
            self.family.changed()
        if self._tried:
            self._tried = False
            quickest = self.family.quickest()
            usual = None if quickest is None else quickest.expect(tokens)
            slow = usual is not None and quickest is not rate and seconds > SLOW * usual
            self._patience = min(2 * self._patience, MOST_OVERLOOKED) if slow else OVERLOOKED

    def has_stepped(
        self, steps: int, read_tokens: int, seconds: float, batch: int, context_tokens: int
    ) -> None:
        """A stream, while the engine read so much, and made so many answers."""
        known = self.step_time.known
        self.step_time.learn(steps, read_tokens, seconds, batch, context_tokens)
        if not known and self.step_time.known:
            self.family.changed()

    def says(self, step_seconds: float, batch: int, context_tokens: int) -> None:
        """The engine says how long its steps took lately."""
        known = self.step_time.known
        self.step_time.said(step_seconds, batch, context_tokens)
        if not known and self.step_time.known:
            self.family.changed()

    def has_loaded(self, tokens: int, seconds: float) -> None:
        self.loading_rate.learn(tokens, seconds)
        if self.loading_rate.seen == ENOUGH:
            self.family.changed()


class Families:
    """Families of a fleet."""

    def __init__(self) -> None:
        self._families: dict[Hashable, Family] = {}

    def put(self, one: LatencyModel, kind: Hashable) -> None:
        """`kind`: what engines that are alike have in common."""
        family = self._families.get(kind)
        if family is None:
            family = self._families[kind] = Family()
        if one.family is not family:
            one.belongs_to(family)
            self._tidy()

    def remove(self, one: LatencyModel) -> None:
        one.belongs_to(Family())
        self._tidy()

    def _tidy(self) -> None:
        for kind in [kind for kind, family in self._families.items() if not family.members]:
            del self._families[kind]


class Family:
    """Instances that are alike, and the middle one of them.

    Attributes:
        quadratic: Of all of them.
        members: Those that are alike.
    """

    __slots__ = (
        "_asked", "_loading", "_quickest", "_reading", "_stepping", "members", "quadratic",
    )  # fmt: skip

    def __init__(self) -> None:
        self.quadratic = QuadraticTerm()
        self.members: list[LatencyModel] = []
        self._asked = 0
        self._reading: Rate | None = None
        self._quickest: Rate | None = None
        self._loading: Rate | None = None
        self._stepping: LatencyModel | None = None

    def join(self, one: LatencyModel) -> None:
        self.members.append(one)
        self.changed()

    def leave(self, one: LatencyModel) -> None:
        self.members.remove(one)
        self.changed()

    def changed(self) -> None:
        """A model is known, or gone: the middle one is looked for anew."""
        self._asked = 0

    def prefill_rate(self) -> Rate | None:
        """Of a typical engine; None while none is known."""
        self._look()
        return self._reading

    def quickest(self) -> Rate | None:
        """Of the engine that reads fastest; None while none is known."""
        self._look()
        return self._quickest

    def loading_rate(self) -> Rate | None:
        self._look()
        return self._loading

    def stepping(self) -> "LatencyModel | None":
        self._look()
        return self._stepping

    def _look(self) -> None:
        if self._asked % LOOK_EVERY == 0:
            reading = _by_speed(member.prefill_rate for member in self.members)
            self._reading = reading[len(reading) // 2] if reading else None
            self._quickest = reading[0] if reading else None
            loading = _by_speed(member.loading_rate for member in self.members)
            self._loading = loading[len(loading) // 2] if loading else None
            known = [
                (member.step_time.typical, member)
                for member in self.members
                if member.step_time.known
            ]
            known.sort(key=lambda one: one[0])
            self._stepping = known[len(known) // 2][1] if known else None
        self._asked += 1


def _by_speed(rates: Iterable[Rate]) -> list[Rate]:
    """Those that are known, the quickest first."""
    known = [
        (seconds, rate) for rate in rates if (seconds := rate.expect(TYPICAL_TOKENS)) is not None
    ]
    known.sort(key=lambda one: one[0])
    return [rate for _, rate in known]
