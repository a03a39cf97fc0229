"""Whoever holds a call's KV lets go of it once, and nobody is sent to fetch what may be gone."""

from asyncio import CancelledError
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import count
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdgate.forwarders.kv_lease import (
    NOTHING_KEPT,
    KvLease,
    KvLedger,
    KvRules,
    KvState,
    Late,
)
from pdgate.protocols.errors import EngineFailed, EngineRefused, EngineRejected, KvExpired
from tests.support.clock import Clock

OVER = {KvState.RELEASED, KvState.LOST}
NIXL = KvRules(30.0, Late.ANSWERS_WRONG, decode_frees=True, decode_renews=True)
KVT = KvRules(30.0)
REJECTED = EngineRejected(400, (), b"")


def held(rules: KvRules, clock: Clock) -> tuple[KvLease, KvLedger]:
    """What prefill has computed and nobody was asked to fetch yet."""
    ledger = KvLedger(clock)
    kv = KvLease(rules, "p0", ledger)
    kv.prefilled(clock.now)
    return kv, ledger


@pytest.mark.parametrize("seconds", [0.0, 24.0])
def test_decode_may_be_asked_for_most_of_the_lease(seconds: float) -> None:
    kv, _ = held(NIXL, Clock())

    kv.ask_decode("d0", seconds)

    assert kv.state is KvState.HANDED_OVER


@pytest.mark.parametrize("seconds", [24.1, 25.0])
def test_no_decode_is_sent_for_what_may_be_gone(seconds: float) -> None:
    kv, _ = held(NIXL, Clock())

    with pytest.raises(KvExpired):
        kv.ask_decode("d0", seconds)
    assert kv.state is KvState.HELD


def test_what_is_kept_for_as_long_as_prefill_lives_never_expires() -> None:
    kv, _ = held(KvRules(), Clock())

    kv.ask_decode("d0", 1e9)

    assert kv.state is KvState.HANDED_OVER


def test_a_refusal_leaves_the_kv_to_another_decode() -> None:
    kv, ledger = held(NIXL, Clock())

    kv.ask_decode("d0", 1.0)
    kv.decode_refused()

    assert (kv.state, ledger.held) == (KvState.HELD, 1)
    kv.ask_decode("d1", 2.0)


def test_a_stream_that_begins_after_the_lease_is_not_believed() -> None:
    kv, _ = held(NIXL, Clock())
    kv.ask_decode("d0", 1.0)

    with pytest.raises(KvExpired) as caught:
        kv.decode_began(30.1, streams=True)

    assert caught.value.at == "d0"


@pytest.mark.parametrize(
    ("rules", "began", "streams"), [(NIXL, 29.9, True), (NIXL, 99.0, False), (KVT, 99.0, True)]
)
def test_other_answers_are_good(rules: KvRules, began: float, streams: bool) -> None:
    """In time; or when its first token came is unknown; or a late decode would say so itself."""
    kv, ledger = held(rules, Clock())
    kv.ask_decode("d0", 1.0)

    kv.decode_began(began, streams=streams)

    assert (kv.state, ledger.held) == (KvState.RELEASED, 0)


ENDS: list[tuple[str, KvRules, BaseException | None, float]] = [
    ("the client leaves", NIXL, CancelledError(), 0.0),
    ("decode says 4xx", NIXL, REJECTED, 0.0),
    ("decode fails, and may have prolonged the lease", NIXL, EngineFailed("500"), 35.0),
    ("decode never heard of it", NIXL, EngineRefused("down"), 30.0),
    ("the client leaves", KVT, CancelledError(), 30.0),
    ("decode says 4xx", KVT, REJECTED, 30.0),
    ("decode fails", KVT, EngineFailed("500"), 30.0),
    ("the client leaves", KvRules(), CancelledError(), inf),
]


@pytest.mark.parametrize(("why", "rules", "error", "until"), ENDS)
def test_how_long_prefill_keeps_what_decode_was_asked_to_fetch(
    why: str, rules: KvRules, error: BaseException | None, until: float
) -> None:
    """Prefill answered at 0, decode was asked, and at 5 the attempt ended."""
    clock = Clock()
    kv, ledger = held(rules, clock)
    kv.ask_decode("d0", 1.0)
    clock.now = 5.0

    kv.end(error, clock.now)

    assert ledger.held == 0
    assert bool(ledger.stranded()) is bool(until)
    clock.now = until - 0.1 if until < inf else 1e9
    assert bool(ledger.stranded()) is bool(until)
    clock.now = until
    assert not ledger.stranded() or until == inf


@pytest.mark.parametrize("error", [CancelledError(), EngineFailed("no decode")])
def test_what_nobody_was_asked_to_fetch_stays_for_the_lease(error: BaseException) -> None:
    clock = Clock()
    kv, ledger = held(NIXL, clock)
    clock.now = 5.0

    kv.end(error, clock.now)

    assert ledger.stranded() == {"p0": 1}
    clock.now = 30.0
    assert ledger.stranded() == {}


@pytest.mark.parametrize("error", [CancelledError(), EngineFailed("500")])
def test_a_prefill_that_is_cut_short_keeps_nothing(error: BaseException) -> None:
    ledger = KvLedger(Clock())
    kv = KvLease(NIXL, "p0", ledger)

    kv.end(error, 1.0)

    assert (ledger.held, ledger.stranded(), kv.state) == (0, {}, KvState.RELEASED)


def test_decode_may_begin_before_prefills_answer_is_here() -> None:
    """Where both start together it does not matter who is heard first."""
    ledger = KvLedger(Clock())
    kv = KvLease(KVT, "p0", ledger)
    kv.ask_decode("d0", 0.0)

    kv.decode_began(1.0, streams=True)
    kv.prefilled(2.0)
    kv.end(None, 3.0)

    assert (ledger.held, ledger.stranded(), kv.state) == (0, {}, KvState.RELEASED)


def test_an_engine_that_is_gone_has_nothing_stranded() -> None:
    ledger = KvLedger(Clock())
    for instance, until in [("p0", 9.0), ("p1", 9.0), ("p0", 8.0), ("p0", inf), ("p1", inf)]:
        ledger.strand(instance, until)

    ledger.forget("p0")

    assert ledger.stranded() == {"p1": 2}


def test_what_is_over_takes_no_room_even_if_nobody_asks() -> None:
    clock = Clock()
    ledger = KvLedger(clock)
    for second in range(10_000):
        clock.now = float(second)
        ledger.strand("p0", second + 30.0)

    assert len(ledger._until) == 30


RULES = [NIXL, KVT, KvRules(), NOTHING_KEPT, replace(NIXL, lease_seconds=1.0)]
ERRORS = [None, CancelledError(), REJECTED, EngineFailed("500"), EngineRefused("down")]
EVENTS = ["prefilled", "ask", "refused", "began", "end", "wait"]


@dataclass
class Run:
    """One attempt, driven by events in any order, with what must hold after each of them."""

    kv: KvLease
    rules: KvRules
    ledger: KvLedger
    clock: Clock
    prefilled: float = inf

    def apply(self, event: str, number: int) -> None:
        before = self.kv.state
        with suppress(KvExpired):
            self._apply(event, number)
        if before in OVER:
            assert self.kv.state is before

    def _apply(self, event: str, number: int) -> None:
        now = self.clock.now
        match event:
            case "prefilled":
                if self.kv.state is KvState.PREFILLING:
                    self.prefilled = now
                self.kv.prefilled(now)
            case "ask":
                self.kv.ask_decode(f"d{number}", now)
                age = now - self.prefilled
                assert age <= self.rules.lease_seconds * self.rules.safe_share
            case "refused":
                self.kv.decode_refused()
            case "began":
                self.kv.decode_began(now, streams=number % 2 == 0)
            case "end":
                self.kv.end(ERRORS[number % len(ERRORS)], now)
            case _:
                self.clock.now += number


@pytest.mark.parametrize("event", EVENTS)
@pytest.mark.parametrize("over", [KvState.RELEASED, KvState.LOST])
def test_nothing_changes_what_is_over(over: KvState, event: str) -> None:
    clock = Clock()
    kv, ledger = held(KVT, clock)
    if over is KvState.RELEASED:
        kv.ask_decode("d0", 0.0)
        kv.decode_began(0.0, streams=True)
    else:
        kv.end(CancelledError(), 0.0)
    assert kv.state is over
    stranded = dict(ledger.stranded())

    Run(kv, KVT, ledger, clock).apply(event, 1)

    assert (kv.state, ledger.held, ledger.stranded()) == (over, 0, stranded)


@given(
    st.lists(st.sampled_from(RULES), min_size=1, max_size=4),
    st.lists(st.tuples(st.integers(0, 3), st.sampled_from(EVENTS), st.integers(0, 40))),
)
def test_however_calls_go_all_of_it_is_let_go_of_once(
    rules: list[KvRules], events: list[tuple[int, str, int]]
) -> None:
    """Nobody is asked too late, the counts are right at any time, and 0 at the end."""
    clock = Clock()
    ledger = KvLedger(clock)
    runs = [
        Run(KvLease(each, f"p{n}", ledger), each, ledger, clock)
        for n, each in zip(count(), rules, strict=False)
    ]
    for which, event, number in [*events, *((n, "end", n) for n in range(len(runs)))]:
        runs[which % len(runs)].apply(event, number)
        holding = [run for run in runs if run.kv.state in (KvState.HELD, KvState.HANDED_OVER)]
        assert ledger.held == len(holding)

    assert all(run.kv.state in OVER for run in runs)
    lost = sorted(run.kv.prefill for run in runs if run.kv.state is KvState.LOST)
    assert sorted(ledger.strandings.elements()) == lost
    clock.now += max((each.lease_seconds for each in rules if each.lease_seconds < inf), default=0)
    for_ever = {run.kv.prefill for run in runs if run.rules.lease_seconds == inf}
    assert set(ledger.stranded()) <= for_ever
    for instance in for_ever:
        ledger.forget(instance)
    assert sum(ledger.stranded().values()) == 0
