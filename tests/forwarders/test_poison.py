"""A call on which two engines fail in the same way is not shown to a third one."""

from dataclasses import replace

import pytest

from pdgate.forwarders.choices import OnPrefillFailure
from pdgate.gateway import errors
from pdgate.protocols.errors import (
    CallBreaksEngines,
    EngineBusy,
    EngineFailed,
    EngineGaveUp,
    EngineTooSlow,
    GatewayError,
)
from pdgate.scheduling.health.breaker import BreakerState
from tests.support.answers import prefilled
from tests.support.scripted import D0, D1, P0, P1, Crossing, Script, Scripted, Turns, chat

P2, D2 = replace(P0, id="p2"), replace(D0, id="d2")
OK = [b"data: fine\n\n"]
RETRY = OnPrefillFailure.RETRY


def broke() -> EngineFailed:
    return EngineFailed("the prefill engine broke off")


async def test_two_prefill_engines_are_enough() -> None:
    engines = Scripted(p0=broke(), p1=broke(), p2=broke(), d0=OK)

    told = await Crossing(engines, P0, P1, P2, D0).ask(chat())

    assert isinstance(told.error, CallBreaksEngines)
    assert "broke off" in str(told.error)
    assert len(engines.visits) == 2
    assert engines.visits[0] != engines.visits[1]


async def test_two_decode_engines_with_two_prefill_engines_are_enough() -> None:
    fails: dict[str, Script] = {d: EngineFailed("500") for d in ("d0", "d1", "d2")}
    engines = Scripted(p0=prefilled(), p1=prefilled(), **fails)

    told = await Crossing(engines, P0, P1, D0, D1, D2, max_attempts=9).ask(chat())

    assert isinstance(told.error, CallBreaksEngines)
    assert len(engines.visits) == 4


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
