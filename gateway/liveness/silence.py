"""Silence of one engine: what its legs, and the answers to our questions, have shown since.

All times are those of the event loop. What has been learnt is forgotten with the first sign of life.
"""

from collections.abc import Sequence
from typing import Protocol

from pdgate.gateway.engine_metrics.page import MetricsPage
from pdgate.gateway.liveness.question import Answered, Mute, PortRefused, Word
from pdgate.protocols.instance import Instance, Role
from pdgate.scheduling.account import context_tokens_of
from pdgate.scheduling.endpoint import Endpoint
from pdgate.scheduling.health.liveness import UNKNOWN_SECONDS_PER_TOKEN, Evidence


class RunningLeg(Protocol):
    """A leg that waits for an engine, as gateway/upstream/exchange.py has it."""

    behind: str
    loads: bool

    @property
    def streams(self) -> bool: ...

    @property
    def prompt_tokens(self) -> int: ...

    @property
    def at(self) -> Instance: ...

    @property
    def has_begun(self) -> bool: ...

    def silent_since(self, now: float) -> float: ...

    def given_up(self, at: str, why: str, *, waited: bool) -> None: ...


class Silence:
    """
    Attributes:
        engine: The one that is silent.
        legs: Of ours, that wait there now.
        behind: Legs at other engines that cannot begin without it.
        since: The last sign of life; or since when some leg has always waited, if that is later: whichever
            came while others waited need not wait as long again when those are given up, or go.
        asking: A question is under way.
        asked: When the last one began.
        sign: The last sign of life that was seen.
        reading: Since when it has a prompt of ours of one token to read; None while it has none.
    """

    def __init__(self, engine: Instance) -> None:
        self.engine = engine
        self.legs: Sequence[RunningLeg] = ()
        self.behind: Sequence[RunningLeg] = ()
        self.since = 0.0
        self.asking = False
        self.asked = float("-inf")
        self.sign = float("-inf")
        self.reading: float | None = None
        self._looked = self._waited_for = float("-inf")
        self._may_read = True
        self._ended_well: int | None = None
        self._refused: tuple[float, ...] = ()
        self._mute_since: float | None = None
        self._page: MetricsPage | None = None
        self._still_since = self._still_until = 0.0
        self._unheard = 0.0

    def look(
        self,
        legs: Sequence[RunningLeg],
        behind: Sequence[RunningLeg],
        endpoint: Endpoint | None,
        now: float,
        unheard: float,
    ) -> None:
        """`unheard`: seconds since the last look in which this process did not run."""
        self._unheard += unheard
        began = any(leg.has_begun for leg in self.behind)
        self.legs, self.behind = legs, behind
        ended_well = self._ended_well
        self._ended_well = None if endpoint is None else endpoint.ended_well
        if began or (ended_well is not None and self._ended_well != ended_well):
            self.lives(now)
        heard = [leg.silent_since(now) for leg in legs if leg.has_begun]
        if heard and max(heard) > self.sign:
            self.lives(max(heard))
        longest = min((leg.silent_since(now) for leg in (*legs, *behind)), default=now)
        if longest <= self._looked:
            # It waited beside those that are gone.
            longest = min(longest, self._waited_for)
        self._looked, self._waited_for = now, longest
        self.since = max(self.sign, longest) + self._unheard

    def lives(self, at: float) -> None:
        """Note a sign of life."""
        self.sign = max(self.sign, at)
        self._forget()

    def heard(self, word: Word, now: float) -> None:
        """Note the answer of now to the question of `asked`."""
        self.asking = False
        self._refused = (*self._refused[:1], now) if isinstance(word, PortRefused) else ()
        if isinstance(word, Answered):
            self._mute_since = None
            self._compare(word.page, now)
        elif isinstance(word, Mute):
            if self._mute_since is None:
                self._mute_since = self.asked
        else:
            self._mute_since = None

    @property
    def says_it_is_idle(self) -> bool:
        """And legs at other engines wait for it, so it is to be given a prompt to read."""
        page = self._page
        return (
            page is not None
            and not page.running
            and not page.waiting
            and bool(self.behind)
            and not self.legs
            and self._may_read
            and self.reading is None
        )

    def has_read(self, well: bool | None, now: float) -> None:
        """What `reads_a_token` found: a refusal of such a prompt says nothing of the core."""
        self.reading = None
        self._may_read = well is not False
        if well:
            self.lives(now)

    def evidence(self, endpoint: Endpoint | None, of: "WatchedEndpoints", now: float) -> Evidence:
        mute_since = self._mute_since
        if mute_since is None and self.asking:
            mute_since = self.asked
        if mute_since is not None:
            mute_since = max(mute_since, self.sign)
        return Evidence(
            silent=now - self.since,
            refusing=self._refused[-1] - self._refused[0] if self._refused else 0.0,
            mute=0.0 if mute_since is None else now - mute_since - self._unheard,
            still=self._still(),
            expected=self._expected(endpoint, of),
            step=_step(endpoint),
            broken_stream=any(leg.has_begun for leg in self.legs),
        )

    def _forget(self) -> None:
        self._refused, self._mute_since, self._page = (), None, None
        self._unheard = 0.0
        self._still_since = self._still_until = 0.0

    def _compare(self, page: MetricsPage | None, now: float) -> None:
        if page is None:
            return
        if page == self._page:
            # As exact as its questions are: answers come sooner or later.
            self._still_until = self.asked
            return
        if self._page is not None:
            self.lives(now)
        self._page = page
        self._still_since = self._still_until = self.asked

    def _still(self) -> float:
        """0 unless its counters count what our legs wait for, and it has something to do."""
        page = self._page
        if page is None or not _counts(page, self.engine):
            return 0.0
        since = self._still_since
        if not page.running:
            if page.waiting or page.transferring:
                # It may wait for KV of others.
                return 0.0
            if self.legs:
                if page.waiting is None and not any(map(_is_its_own, self.legs)):
                    return 0.0
            elif self.reading is None:
                return 0.0
            else:
                since = max(since, self.reading)
        return max(0.0, self._still_until - since - self._unheard)

    def _expected(self, endpoint: Endpoint | None, of: "WatchedEndpoints") -> float:
        return max((_reading(leg, endpoint, of) for leg in (*self.legs, *self.behind)), default=0.0)


class WatchedEndpoints(Protocol):
    def get(self, instance_id: str) -> Endpoint | None: ...


def _step(endpoint: Endpoint | None) -> float:
    if endpoint is None:
        return 0.0
    batch = max(1, endpoint.answering)
    return endpoint.latency.step_seconds(batch, context_tokens_of(endpoint, batch)) or 0.0


def _is_its_own(leg: RunningLeg) -> bool:
    """To begin it, or to go on with it, is up to the engine itself."""
    return leg.has_begun or leg.loads or leg.behind in ("", leg.at.id)


def _counts(page: MetricsPage, engine: Instance) -> bool:
    """Whether a page without a change shows that nothing was done for our legs.

    At the first call of all, engines compile what they compute, and have counted nothing.
    """
    counters = page.counters
    if engine.role is Role.PREFILL:
        return bool(counters.first_tokens or counters.computed)
    return bool(counters.steps)


def _reading(leg: RunningLeg, endpoint: Endpoint | None, of: WatchedEndpoints) -> float:
    """How long its prompt should take to be read, by the engine that reads it."""
    if leg.has_begun:
        return 0.0
    tokens = leg.prompt_tokens
    if leg.loads:
        loading = None if endpoint is None else endpoint.latency.loading_seconds(tokens)
        return loading or 0.0
    reader = of.get(leg.behind or leg.at.id)
    seconds = None if reader is None else reader.latency.prefill_seconds(tokens)
    return tokens * UNKNOWN_SECONDS_PER_TOKEN if seconds is None else seconds
