"""A call on which engines fail in the same way is not shown to all of them."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from pdgate.forwarders.base import Leg, Mode
from pdgate.forwarders.choices import OnPrefillFailure
from pdgate.forwarders.record import DECODE_ONLY, PREFILL_ONLY
from pdgate.gateway import errors
from pdgate.protocols.call import Raw, encode
from pdgate.protocols.dialects import nixl
from pdgate.protocols.errors import (
    CallBreaksEngines,
    EngineBusy,
    EngineFailed,
    EngineGaveUp,
    EngineTooSlow,
    GatewayError,
)
from pdgate.protocols.instance import Role
from pdgate.scheduling.disaggregation.rules import Never
from pdgate.scheduling.health.breaker import BreakerState
from tests.support.answers import prefilled, whole
from tests.support.scripted import D0, D1, P0, P1, Crossing, Script, Scripted, Step, Turns, chat

P2, D2, D3 = replace(P0, id="p2"), replace(D0, id="d2"), replace(D0, id="d3")
HAND_OVER = {"kv_transfer_params", "bootstrap_room"}
OK = [b"data: fine\n\n"]
RETRY, RECOMPUTE = OnPrefillFailure.RETRY, OnPrefillFailure.RECOMPUTE


class Loading(Scripted):
    """Prefill engines that all answer so, and decode engines that answer well unless they are to load KV.

    Attributes:
        load: What they say then; None for an answer that is as good.
    """

    def __init__(self, load: EngineFailed | None, prefill: Script) -> None:
        super().__init__()
        self.load = load
        self.prefill = prefill

    async def _head(self, leg: Leg) -> Sequence[Step]:
        script: Script = self.prefill if leg.to.role is Role.PREFILL else OK
        if self.load is not None and leg.to.role is Role.DECODE and HAND_OVER & leg.body.keys():
            script = self.load
        self.scripts = {leg.to.id: script}
        return await super()._head(leg)


class AloneOnly(Scripted):
    """Engines that answer calls well, and fail at one side of a hand-over.

    Attributes:
        side: Prefill's, or decode's.
    """

    def __init__(self, side: Role) -> None:
        super().__init__()
        self.side = side

    async def _head(self, leg: Leg) -> Sequence[Step]:
        script: Script = OK
        if nixl.FIELD in leg.body:
            asked = leg.body[nixl.FIELD] == Raw(encode(nixl.ASK))
            side = Role.PREFILL if asked else Role.DECODE
            script = prefilled() if side is Role.PREFILL else OK
            if side is self.side:
                script = EngineFailed("the engine answered with status 500")
        self.scripts = {leg.to.id: script}
        return await super()._head(leg)


async def nothing_is_lost(engines: Scripted, fleet: int, mode: Mode = Mode.BATCH) -> None:
    """Of calls to so many engines of each role."""
    both = [replace(one, id=f"{one.id[0]}{n}") for one in (P0, D0) for n in range(fleet)]
    crossing = Crossing(engines, *both, mode=mode)

    for _ in range(30):
        assert (await crossing.ask(chat())).body == OK[0]


def failed(role: str) -> EngineFailed:
    return EngineFailed(f"the {role} engine answered with status 500")


def broke() -> EngineFailed:
    return EngineFailed("the prefill engine broke off", broke_off=True)


async def test_two_prefill_engines_are_enough() -> None:
    engines = Scripted(p0=broke(), p1=broke(), p2=broke(), d0=OK)

    told = await Crossing(engines, P0, P1, P2, D0).ask(chat())

    assert isinstance(told.error, CallBreaksEngines)
    assert "broke off" in str(told.error)
    assert len(engines.visits) == 2
    assert engines.visits[0] != engines.visits[1]


async def test_two_decode_engines_with_two_prefill_engines_are_enough() -> None:
    gone = EngineFailed("the decode engine broke off", broke_off=True)
    engines = Scripted(p0=prefilled(), p1=prefilled(), d0=gone, d1=gone, d2=gone)

    told = await Crossing(engines, P0, P1, D0, D1, D2, max_attempts=9).ask(chat())

    assert isinstance(told.error, CallBreaksEngines)
    assert len(engines.visits) == 4


@pytest.mark.parametrize("max_attempts", [3, 9])
async def test_where_kv_may_be_why_a_third_decode_engine_tells_without_any(
    max_attempts: int,
) -> None:
    """That their KV does not cross all engines say by a 500, as they do of a call that none can do."""
    fails: dict[str, Script] = {d.id: failed("decode") for d in (D0, D1, D2, D3)}
    engines = Scripted(p0=prefilled(), p1=prefilled(), p2=prefilled(), **fails)
    crossing = Crossing(engines, P0, P1, P2, D0, D1, D2, D3, max_attempts=max_attempts)

    told = await crossing.ask(chat())

    assert isinstance(told.error, CallBreaksEngines)
    assert [visit[0] for visit in engines.visits] == ["p", "d", "p", "d", "d"]
    assert told.record.path == DECODE_ONLY
    assert set(crossing.execution.accused) == {*engines.visits} - {"p0", "p1", "p2"}


@pytest.mark.parametrize("max_attempts", [3, 9])
async def test_after_two_prefill_engines_one_decode_engine_tells(max_attempts: int) -> None:
    fails: dict[str, Script] = {p.id: failed("prefill") for p in (P0, P1, P2)}
    engines = Scripted(d0=failed("decode"), d1=failed("decode"), **fails)
    crossing = Crossing(engines, P0, P1, P2, D0, D1, max_attempts=max_attempts)

    told = await crossing.ask(chat())

    assert isinstance(told.error, CallBreaksEngines)
    assert [visit[0] for visit in engines.visits] == ["p", "p", "d"]
    assert set(crossing.execution.accused) == set(engines.visits)


async def test_a_call_that_no_engine_can_do_takes_none_of_them_out() -> None:
    bad = [turn for _ in range(10) for turn in (failed("decode"), OK, OK)]
    engines = Scripted(p0=prefilled(), p1=prefilled(), p2=prefilled())
    engines.scripts |= {d.id: Turns(*bad) for d in (D0, D1, D2)}
    crossing = Crossing(engines, P0, P1, P2, D0, D1, D2)

    for _ in range(10):
        assert isinstance((await crossing.ask(chat())).error, CallBreaksEngines)
        for _ in range(6):
            assert (await crossing.ask(chat())).body == OK[0]

    assert {c.breaker.state for c in crossing.endpoints} == {BreakerState.CLOSED}


@pytest.mark.parametrize("fleet", [2, 3, 8])
async def test_no_call_is_lost_where_kv_does_not_cross(fleet: int) -> None:
    engines = Loading(EngineFailed("the decode engine answered with status 500"), prefilled())

    await nothing_is_lost(engines, fleet)


@pytest.mark.parametrize("mode", Mode)
@pytest.mark.parametrize("fleet", [2, 4])
async def test_no_call_is_lost_where_prefill_names_no_kv(fleet: int, mode: Mode) -> None:
    await nothing_is_lost(Loading(None, whole("a")), fleet, mode)


@pytest.mark.parametrize("fleet", [2, 4])
async def test_no_call_is_lost_where_every_prefill_engine_fails(fleet: int) -> None:
    await nothing_is_lost(Loading(None, failed("prefill")), fleet)


@pytest.mark.parametrize("policy", [OnPrefillFailure.RETRY_THEN_RECOMPUTE, RECOMPUTE])
@pytest.mark.parametrize("side", [Role.PREFILL, Role.DECODE])
@pytest.mark.parametrize("fleet", [2, 3, 5])
async def test_no_call_is_lost_where_engines_of_both_roles_do_well_alone(
    fleet: int, side: Role, policy: OnPrefillFailure
) -> None:
    """That they fail at a hand-over says nothing of what they read for themselves."""
    both = [replace(P0, id=f"b{n}", role=Role.BOTH) for n in range(fleet)]
    crossing = Crossing(AloneOnly(side), *both, on_prefill_failure=policy)

    for _ in range(20):
        assert (await crossing.ask(chat())).body == OK[0]


async def test_who_broke_off_as_prefill_is_not_the_one_that_tells() -> None:
    """Its process may be gone."""
    b0, b1 = (replace(P0, id=name, role=Role.BOTH) for name in ("b0", "b1"))
    engines = Scripted(b1=broke(), b0=Turns(failed("prefill"), OK))

    assert (await Crossing(engines, b0, b1).ask(chat())).body == OK[0]
    assert engines.visits == ["b1", "b0", "b0"]


async def test_engines_of_both_roles_meet_a_call_that_none_can_do_three_times() -> None:
    fails: dict[str, Script] = {f"b{n}": EngineFailed("500") for n in range(5)}
    both = [replace(P0, id=name, role=Role.BOTH) for name in fails]

    engines = Scripted(**fails)
    told = await Crossing(engines, *both, max_attempts=9).ask(chat())

    assert isinstance(told.error, CallBreaksEngines)
    assert len(engines.visits) == 3


@pytest.mark.parametrize("mode", Mode)
@pytest.mark.parametrize("max_attempts", [3, 4, 9])
async def test_no_call_is_lost_where_the_only_decode_engine_gets_no_kv(
    max_attempts: int, mode: Mode
) -> None:
    """It is not given up before it has read the prompt itself."""
    fleet = [replace(P0, id=f"p{n}") for n in range(4)]
    engines = AloneOnly(Role.DECODE)

    told = await Crossing(engines, *fleet, D0, mode=mode, max_attempts=max_attempts).ask(chat())

    assert told.body == OK[0]
    assert [visit[0] for visit in engines.visits] == ["p", "d", "p", "d", "d"]


async def test_where_decode_cannot_read_prompts_two_engines_are_enough() -> None:
    p0, p1, d0, d1, d2 = (replace(one, protocol="sglang") for one in (P0, P1, D0, D1, D2))
    engines = Loading(EngineFailed("500"), prefilled())

    told = await Crossing(engines, p0, p1, d0, d1, d2).ask(chat())

    assert isinstance(told.error, CallBreaksEngines)
    assert len({visit for visit in engines.visits if visit.startswith("d")}) == 2


async def test_an_answer_without_a_hand_over_says_nothing_for_those_accused_over_one() -> None:
    """As prefill's token, and what decode reads itself, go well where no KV gets across."""
    engines = Loading(EngineFailed("500"), prefilled())
    crossing = Crossing(engines, P0, P1, D0, D1, on_prefill_failure=RETRY)
    assert isinstance((await crossing.ask(chat())).error, CallBreaksEngines)

    crossing.endpoints.drain({"p0", "p1"})
    crossing.execution.router.policy = replace(
        crossing.execution.router.policy, on_prefill_failure=OnPrefillFailure.RECOMPUTE
    )
    for _ in range(2):
        assert (await crossing.ask(chat())).body == OK[0]
    assert set(crossing.execution.accused) == {"d0", "d1"}

    crossing.endpoints.drain(())
    engines.load = None
    for _ in range(2):
        assert (await crossing.ask(chat())).body == OK[0]
    assert not crossing.execution.accused


async def test_nor_does_an_answer_without_kv_for_a_prefill_engine() -> None:
    engines = Loading(None, whole("a"))
    crossing = Crossing(engines, P0, P1, D0, on_prefill_failure=RETRY)
    assert isinstance((await crossing.ask(chat())).error, CallBreaksEngines)

    told = await crossing.ask(chat())

    assert type(told.error) is EngineFailed
    assert set(crossing.execution.accused) == {"p0", "p1"}


async def test_nor_does_the_one_token_that_it_answers_itself() -> None:
    engines = Loading(None, whole("a"))
    crossing = Crossing(engines, P0, P1, D0, on_prefill_failure=RETRY)
    assert isinstance((await crossing.ask(chat())).error, CallBreaksEngines)

    for _ in range(2):
        told = await crossing.ask(chat(stream=False, max_tokens=1))
        assert (told.error, told.record.path) == (None, PREFILL_ONLY)

    assert set(crossing.execution.accused) == {"p0", "p1"}


async def test_but_it_does_for_those_accused_over_such_a_call() -> None:
    engines = Loading(None, failed("prefill"))
    crossing = Crossing(engines, P0, P1, D0, on_prefill_failure=RETRY)
    told = await crossing.ask(chat(stream=False, max_tokens=1))
    assert isinstance(told.error, CallBreaksEngines)
    assert set(crossing.execution.accused) == {"p0", "p1"}

    engines.prefill = whole("a")
    for _ in range(2):
        assert (await crossing.ask(chat(stream=False, max_tokens=1))).error is None

    assert not crossing.execution.accused


async def test_who_is_accused_over_a_hand_over_is_not_over_a_call_without_one() -> None:
    """Else a call that ends engines meets all of them, however well they have answered alone since."""
    ds = [replace(D0, id=f"d{n}") for n in range(6)]
    engines = Loading(EngineFailed("500"), prefilled())
    crossing = Crossing(engines, P0, P1, P2, *ds, on_prefill_failure=RETRY, max_attempts=6)
    while len(crossing.execution.accused) < len(ds):
        assert (await crossing.ask(chat())).error
    assert all(crossing.execution.accused.values())

    crossing.scheduler.rule = Never()
    gone = EngineFailed("the decode engine broke off", broke_off=True)
    ending = crossing.execution.upstream = Scripted(**{d.id: gone for d in ds})

    assert isinstance((await crossing.ask(chat())).error, CallBreaksEngines)
    assert len(ending.visits) == 2


async def test_two_decode_engines_over_one_prefill_engines_kv_prove_nothing() -> None:
    """The transfer may have failed, of which both tell as of anything else."""
    fails: dict[str, Script] = {d: Turns(EngineFailed("500"), OK) for d in ("d0", "d1")}
    engines = Scripted(p0=prefilled(), **fails)

    told = await Crossing(engines, P0, D0, D1).ask(chat())

    assert told.body == OK[0]
    assert told.record.attempts == 3


@pytest.mark.parametrize(
    "failures",
    [
        (EngineFailed("status 500"), EngineFailed("status 502")),
        (EngineBusy("full"), EngineBusy("full")),
        (EngineTooSlow("slow"), EngineTooSlow("slow")),
        (EngineGaveUp("abort"), EngineGaveUp("abort")),
    ],
    ids=["in two ways", "full", "slow", "shutting down"],
)
async def test_other_failures_are_the_engines_own(
    failures: tuple[GatewayError, GatewayError],
) -> None:
    engines = Scripted(p1=failures[0], p2=failures[1], p0=prefilled(), d0=OK)

    assert (await Crossing(engines, P0, P1, P2, D0).ask(chat())).body == OK[0]


async def test_one_engine_that_fails_twice_proves_nothing() -> None:
    engines = Scripted(p0=EngineFailed("500"), d0=OK)

    told = await Crossing(engines, P0, D0, on_prefill_failure=RETRY).ask(chat())

    assert str(told.error) == "500"
    assert engines.visits == ["p0", "p0"]


async def test_the_engines_are_not_blamed() -> None:
    """However often the call is sent: else one caller could take the whole fleet out."""
    bad = [turn for _ in range(10) for turn in (broke(), prefilled())]
    engines = Scripted(p0=Turns(*bad), p1=Turns(*bad), d0=OK)
    crossing = Crossing(engines, P0, P1, D0)

    for _ in range(10):
        assert isinstance((await crossing.ask(chat())).error, CallBreaksEngines)
        for _ in range(2):
            assert (await crossing.ask(chat())).body == OK[0]

    assert {c.breaker.state for c in crossing.endpoints} == {BreakerState.CLOSED}


async def test_engines_that_fail_on_other_calls_as_well_are() -> None:
    """Only the first call of an outage is taken for the cause of it."""
    engines = Scripted(p0=broke(), p1=broke(), d0=OK)
    crossing = Crossing(engines, P0, P1, D0)
    assert isinstance((await crossing.ask(chat())).error, CallBreaksEngines)

    for _ in range(5):
        assert (await crossing.ask(chat())).body == OK[0]

    assert BreakerState.CLOSED not in {
        c.breaker.state for c in crossing.endpoints if c.instance.id != "d0"
    }


def test_official_clients_are_told_not_to_repeat_it() -> None:
    status, headers, _ = errors.as_response(CallBreaksEngines("two engines failed"))

    assert status == 502
    assert (b"x-should-retry", b"false") in headers
