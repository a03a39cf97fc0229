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

Rates, at which tokens are read, or taken over, are learnt from how long it took:

    seconds = fixed + tokens * per_token

A straight line through what was seen, fitted by least squares with each weighed by
1 / tokens (long ones vary more) and the latest counting most. What was seen of one size only
is taken to grow in proportion, or to be the same for all sizes, as is likelier for what is
measured. Neither part can be negative; where the fit makes one so, what is left is fitted alone.

One that takes MOST times as long as expected (a machine that slept, a call that got stuck) counts
as that; of several in a row the limit doubles each time, as then it is the engine that changed.
"""

from collections.abc import Hashable, Iterable
from typing import TYPE_CHECKING, Final

from pdgate.scheduling.latency.accuracy import Accuracy
from pdgate.scheduling.latency.quadratic import SHORT, QuadraticTerm
from pdgate.scheduling.latency.step_time import StepTime

if TYPE_CHECKING:
    from pdgate.scheduling.endpoint import Endpoint

TYPICAL_TOKENS: Final = 1000
"""Of the prompt by which speeds are compared."""

TOKENS_PER_SECOND: Final = 10_000
"""Of prompts, where no engine has shown yet how fast it is."""

LOOK_EVERY: Final = 1000
"""Questions, as the middle one changes its mind, too."""

OVERLOOKED: Final = 32
MOST_OVERLOOKED: Final = 4096

SLOW: Final = 2.0
"""Times what the quickest of the family takes: a trial that takes longer has found a slow engine."""


ENOUGH: Final = 3
"""Seen before which nothing is said."""

FORGOTTEN: Final = 0.15
"""Of all that was seen, when the next one has been: about the last seven count."""

KEPT: Final = 1 - FORGOTTEN

REMAINS: Final = 0.001
"""Of all that was seen, after `forget`."""

LEAST_TOKENS: Final = 32
"""Shorter ones weigh no more than these, or an empty prompt would outweigh all others."""

MOST_WEIGHT: Final = 1 / LEAST_TOKENS

ANCHOR: Final = 0.02
"""Where times grow in proportion: the share of all weight that a point at nothing has."""

LEVEL: Final = 1.0
"""Where they do not: how far sizes must differ, in their mean, for a slope to be believed half."""

MOST: Final = 4.0
"""Times what was expected."""

MOST_DOUBLINGS: Final = 20

LEAST_SECONDS: Final = 0.01
"""What is shorter is not strange, whatever was expected."""

SURE_SECONDS: Final = MOST * LEAST_SECONDS
"""What takes no longer is believed without a look at what was expected."""


class Rate:
    """Seconds by tokens, as a line.

    Attributes:
        seen: How often it was learnt from.
        fixed, per_token: The line through that, as of the latest `fit`.
        fresh: Whether that was after the latest `learn`.
    """

    __slots__ = (
        "_anchored", "_products", "_seconds", "_squares", "_strange", "_tokens", "_varies", "_weight",
        "fixed", "fresh", "per_token", "seen",
    )  # fmt: skip

    def __init__(self, *, level: bool = False) -> None:
        """`level`: sizes make no difference unless it shows."""
        self.seen = 0
        # Of all weight, and of the mean squared.
        self._anchored = 1.0 if level else 1 + ANCHOR
        self._varies = LEVEL - 1 if level else -1.0
        # Sums of w, wt, ws, wtt and wts over tokens t and seconds s with their weights w.
        self._weight = self._tokens = self._seconds = self._squares = self._products = 0.0
        # The line through them, made when it is asked for.
        self.fixed = self.per_token = 0.0
        self.fresh = False
        self._strange = 0

    def learn(self, tokens: float, seconds: float, expected: float | None = None) -> float:
        """Returns the seconds that are believed. `expected`: what was, if a caller has asked."""
        if self.seen >= ENOUGH and (
            self._strange
            or (seconds > SURE_SECONDS and (expected is None or seconds > MOST * expected))
        ):
            seconds = self._believed(tokens, seconds, expected)
        of_tokens, of_squares = self._tokens, self._squares
        # A short prompt says little of long ones, so it makes them forgotten only a little.
        kept = KEPT
        if tokens * of_tokens < of_squares:
            kept = 1 - FORGOTTEN * tokens * of_tokens / of_squares
        weight = 1 / tokens if tokens > LEAST_TOKENS else MOST_WEIGHT
        weighed = weight * tokens
        self.seen += 1
        self._weight = self._weight * kept + weight
        self._tokens = of_tokens * kept + weighed
        self._seconds = self._seconds * kept + weight * seconds
        self._squares = of_squares * kept + weighed * tokens
        self._products = self._products * kept + weighed * seconds
        self.fresh = False
        return seconds

    def forget(self) -> None:
        """What is seen next counts more than all before it; until then the line stays as it is."""
        self._weight *= REMAINS
        self._tokens *= REMAINS
        self._seconds *= REMAINS
        self._squares *= REMAINS
        self._products *= REMAINS
        self._strange = 0

    def expect(self, tokens: float) -> float | None:
        """Seconds; None while too little was seen."""
        if self.seen < ENOUGH:
            return None
        if not self.fresh:
            self.fit()
        return self.fixed + self.per_token * tokens

    def _believed(self, tokens: float, seconds: float, expected: float | None) -> float:
        if expected is None:
            expected = self.expect(tokens) or 0.0
        most = MOST * 2.0**self._strange * max(expected, LEAST_SECONDS)
        if seconds <= most:
            self._strange = 0
            return seconds
        self._strange = min(self._strange + 1, MOST_DOUBLINGS)
        return most

    def fit(self) -> None:
        """Draws the line anew. A reader does so when it is not fresh, and not the learner: some
        rates are never read."""
        self.fresh = True
        squares, products = self._squares, self._products
        weight = self._weight * self._anchored
        mean_tokens, mean_seconds = self._tokens / weight, self._seconds / weight
        spread = squares / weight + self._varies * mean_tokens * mean_tokens
        if spread <= 0:
            # Nothing but empty prompts.
            self.fixed, self.per_token = self._seconds / self._weight, 0.0
            return
        per_token = (products / weight - mean_tokens * mean_seconds) / spread
        fixed = mean_seconds - per_token * mean_tokens
        if fixed < 0:
            fixed, per_token = 0.0, products / squares
        elif per_token < 0:
            fixed, per_token = self._seconds / self._weight, 0.0
        self.fixed, self.per_token = fixed, per_token


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
        self.family = InstanceFamily()
        self.family.join(self)

    def belongs_to(self, family: "InstanceFamily") -> None:
        """What it has learnt itself stays."""
        if family is not self.family:
            self.family.leave(self)
            self.family = family
            family.join(self)

    # What is asked.

    def prefill_seconds(self, uncached_tokens: int, squares: float | None = None) -> float | None:
        """Seconds until so many prompt tokens have been read, beginning now: those that wait, and more.

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
        # `Rate.expect` of a known one, without a call of it: this is done for each endpoint of each
        # call.
        if not rate.fresh:
            rate.fit()
        straight = uncached_tokens + self.family.quadratic.per_token * squares
        return rate.fixed + rate.per_token * straight

    def begin_seconds(self) -> float:
        """Seconds that a prompt of any length takes; 0 while nothing is known.

        Of its kind, if those take less: a line through prompts that were all about as long says little of where it begins.
        """
        own = self.prefill_seconds(0, 0.0)
        if own is None:
            return 0.0
        like = self.family.prefill_rate()
        typical = None if like is None else like.expect(0)
        return own if typical is None or own < typical else typical

    def loading_seconds(self, tokens: int) -> float | None:
        """Seconds from the end of prefill to decode's first token, for a prompt of so many."""
        if self.loading_rate.seen >= ENOUGH:
            return self.loading_rate.expect(tokens)
        like = self.family.loading_rate()
        return None if like is None else like.expect(tokens)

    def step_seconds(self, batch: int, context_tokens: int) -> float | None:
        """Seconds between two tokens of an answer, of so many answers with so much context together.

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
        """Seconds by which each answer gets longer if the engine reads so many tokens meanwhile."""
        return self.step_time.longer_seconds(tokens)

    # What was seen.

    def has_call(self) -> None:
        """Note a prompt to read, which will show how long that takes."""
        if self.overlooked > self._patience:
            self.prefill_rate.forget()
            self._tried = True
        self.overlooked = 0

    def has_read(self, tokens: int, squares: float, seconds: float, expected: float | None) -> None:
        """All that was unread when a call came; `expected`: what was said to be then."""
        quadratic, rate = self.family.quadratic, self.prefill_rate
        believed = rate.learn(tokens + quadratic.per_token * squares, seconds, expected)
        # Now, as the next call asks for it.
        rate.fit()
        # Else it would not learn, and is not called for that.
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
        if expected is not None:
            self.prefill_accuracy.compare(expected, seconds)

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
        self._families: dict[Hashable, InstanceFamily] = {}

    def put(self, one: LatencyModel, kind: Hashable) -> None:
        """`kind`: what engines that are alike have in common."""
        family = self._families.get(kind)
        if family is None:
            family = self._families[kind] = InstanceFamily()
        if one.family is not family:
            one.belongs_to(family)
            self._tidy()

    def remove(self, one: LatencyModel) -> None:
        one.belongs_to(InstanceFamily())
        self._tidy()

    def _tidy(self) -> None:
        for kind in [kind for kind, family in self._families.items() if not family.members]:
            del self._families[kind]


class InstanceFamily:
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
        """Prefill rate of a typical engine; None while none is known."""
        self._look()
        return self._reading

    def quickest(self) -> Rate | None:
        """Rate of the engine that reads fastest; None while none is known."""
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


def reading(endpoint: "Endpoint", uncached_tokens: int) -> tuple[float, float]:
    """Seconds until it has read what it has to read already, and this prompt; and of these, those
    in which it reads this prompt."""
    tokens = endpoint.unread_tokens + endpoint.beyond.unread_tokens + uncached_tokens
    squares = 1.0 * uncached_tokens * uncached_tokens
    if endpoint.unread_tokens:
        alone = endpoint.shared is None
        squares += endpoint.own_unread_squares if alone else endpoint.unread_squares
    expected = endpoint.latency.prefill_seconds(tokens, squares)
    seconds = tokens / TOKENS_PER_SECOND if expected is None else expected
    return seconds, seconds * uncached_tokens / tokens if tokens else 0.0


def _by_speed(rates: Iterable[Rate]) -> list[Rate]:
    """Those that are known, the quickest first."""
    known = [
        (seconds, rate) for rate in rates if (seconds := rate.expect(TYPICAL_TOKENS)) is not None
    ]
    known.sort(key=lambda one: one[0])
    return [rate for _, rate in known]
