"""What happens when prefill fails, or nobody is up to do it: as the operator has chosen."""

import asyncio
from dataclasses import replace

import pytest

from pdgate.forwarders.base import Mode
from pdgate.forwarders.choices import OnPrefillFailure
from pdgate.forwarders.record import DECODE_ONLY, DISAGGREGATED
from pdgate.protocols.errors import (
    EngineBusy,
    EngineFailed,
    EngineGaveUp,
    EngineRefused,
    EngineTooSlow,
    GenerationsDiffer,
    NoInstance,
)
from pdgate.protocols.instance import Role
from pdgate.scheduling.disaggregation.decision import NO_PREFILL
from tests.support.answers import piece, prefilled, whole
from tests.support.scripted import D0, D1, P0, P1, After, Crossing, Script, Scripted, Turns, chat

RETRY_THEN_RECOMPUTE, RETRY, RECOMPUTE, FAIL = OnPrefillFailure

OK = [b"data: fine\n\n"]
FAILURES: dict[str, Script] = {
    "refused": EngineRefused("down"),
    "status 500": EngineFailed("500"),
    "status 503": EngineBusy("full"),
    "too slow": EngineTooSlow("slow"),
    "gave up": EngineGaveUp("abort"),
    "no blocks": whole("a"),
}


@pytest.mark.parametrize("bad", FAILURES.values(), ids=FAILURES)
@pytest.mark.parametrize("mode", Mode)
async def test_recompute_has_decode_read_the_prompt_at_once(bad: Script, mode: Mode) -> None:
    engines = Scripted(p1=bad, p0=prefilled(), d0=OK)
    crossing = Crossing(engines, P0, P1, D0, mode=mode, on_prefill_failure=RECOMPUTE)

    told = await crossing.ask(chat())

    assert told.body == OK[0]
    assert engines.visits == ["p1", "d0"]
    assert (told.record.path, told.record.handed_over) == (DECODE_ONLY, False)
    assert told.record.decisions[2].reason == NO_PREFILL


@pytest.mark.parametrize("policy", [RECOMPUTE, RETRY_THEN_RECOMPUTE])
async def test_decode_gets_the_call_as_it_came(policy: OnPrefillFailure) -> None:
    """Not a word of the KV that there is none of."""
    engines = Scripted(p0=EngineRefused("down"), d0=OK)
    call = chat(top_k=7)

    await Crossing(engines, P0, D0, on_prefill_failure=policy).ask(call)

    assert engines.sent[-1][0].body == call.body


@pytest.mark.parametrize("bad", FAILURES.values(), ids=FAILURES)
async def test_fail_asks_nobody_else(bad: Script) -> None:
    engines = Scripted(p1=bad, p0=prefilled(), d0=OK)

    told = await Crossing(engines, P0, P1, D0, on_prefill_failure=FAIL).ask(chat())

    assert told.error is not None
    assert engines.visits == ["p1"]


async def test_fail_is_about_prefill_alone() -> None:
    engines = Scripted(p0=prefilled(), d1=EngineFailed("500"), d0=OK)

    told = await Crossing(engines, P0, D0, D1, on_prefill_failure=FAIL).ask(chat())

    assert told.body == OK[0]


@pytest.mark.parametrize("bad", FAILURES.values(), ids=FAILURES)
@pytest.mark.parametrize("policy", [RETRY, RETRY_THEN_RECOMPUTE])
async def test_retry_asks_another_prefill_first(bad: Script, policy: OnPrefillFailure) -> None:
    engines = Scripted(p1=bad, p0=prefilled(), d0=OK)

    told = await Crossing(engines, P0, P1, D0, on_prefill_failure=policy).ask(chat())

    assert engines.visits == ["p1", "p0", "d0"]
    assert told.record.path == DISAGGREGATED


@pytest.mark.parametrize("bad", FAILURES.values(), ids=FAILURES)
async def test_by_default_decode_stands_in_when_every_prefill_has_failed(bad: Script) -> None:
    engines = Scripted(p0=bad, d0=OK)

    told = await Crossing(engines, P0, D0).ask(chat())

    assert told.body == OK[0]
    assert engines.visits[-1] == "d0"
    assert told.record.attempts == len(engines.visits) <= 3


async def test_the_last_attempt_is_decodes() -> None:
    many = [replace(P0, id=f"p{n}") for n in range(5)]
    down: dict[str, Script] = {one.id: EngineFailed(one.id) for one in many}
    engines = Scripted(d0=OK, **down)

    told = await Crossing(engines, *many, D0, max_attempts=4).ask(chat())

    assert told.body == OK[0]
    assert len(engines.visits) == 4
    assert engines.visits[-1] == "d0"


@pytest.mark.parametrize("policy", [RECOMPUTE, RETRY_THEN_RECOMPUTE])
async def test_while_no_prefill_is_up_decode_serves(policy: OnPrefillFailure) -> None:
    engines = Scripted(d0=OK)
    crossing = Crossing(engines, P0, D0, on_prefill_failure=policy)
    crossing.endpoints.mark_down("p0")

    told = await crossing.ask(chat())

    assert told.body == OK[0]
    assert (told.record.path, told.record.attempts) == (DECODE_ONLY, 1)


@pytest.mark.parametrize("policy", [RETRY, FAIL])
async def test_else_there_is_nobody(policy: OnPrefillFailure) -> None:
    crossing = Crossing(Scripted(d0=OK), P0, D0, on_prefill_failure=policy)
    crossing.endpoints.mark_down("p0")

    told = await crossing.ask(chat())

    assert isinstance(told.error, NoInstance)


async def test_for_engines_that_do_not_understand_each_other_nobody_stands_in() -> None:
    """It is a mistake in the fleet, which a slow answer would hide."""
    p0 = replace(P0, protocol="neuron", generation="zmq")
    d0 = replace(D0, protocol="neuron", generation="nixl")
    engines = Scripted(d0=OK)

    told = await Crossing(engines, p0, d0).ask(chat())

    assert isinstance(told.error, GenerationsDiffer)
    assert engines.visits == []


async def test_a_decode_that_cannot_read_prompts_is_not_sent_one() -> None:
    """SGLang's has no prefill; one of another protocol may do it."""
    p0, d0 = (replace(one, protocol="sglang") for one in (P0, D0))
    engines = Scripted(p0=EngineRefused("down"), d0=OK, d1=OK)
    crossing = Crossing(engines, p0, d0, D1)
    crossing.endpoints.mark_down("p0")

    told = await crossing.ask(chat())

    assert told.body == OK[0]
    assert engines.visits == ["d1"]
    crossing.endpoints.mark_down("d1")
    assert isinstance((await crossing.ask(chat())).error, NoInstance)


async def test_a_decode_that_fails_alone_is_replaced_too() -> None:
    engines = Scripted(p0=EngineRefused("down"), d0=EngineFailed("500"), d1=OK)

    told = await Crossing(engines, P0, D0, D1).ask(chat())

    assert told.body == OK[0]
    assert engines.visits == ["p0", "d0", "d1"]


@pytest.mark.parametrize("protocol", ["vllm-nixl", "vllm-kvt"])
async def test_the_last_chance_of_a_decode_is_to_need_nobody(protocol: str) -> None:
    """Its transfers may fail for ever, and all that it says is 500, or that it gave the call up."""
    p0, d0 = (replace(one, protocol=protocol) for one in (P0, D0))
    fails = EngineFailed("500") if protocol == "vllm-nixl" else [piece("", "abort")]
    engines = Scripted(p0=prefilled(), d0=Turns(fails, fails, OK))

    told = await Crossing(engines, p0, d0).ask(chat())

    assert told.body == OK[0]
    assert told.record.path == DECODE_ONLY


async def test_which_it_gets_once() -> None:
    engines = Scripted(p0=prefilled(), d0=EngineFailed("always"))

    told = await Crossing(engines, P0, D0, max_attempts=9).ask(chat())

    assert str(told.error) == "always"
    assert engines.visits == ["p0", "d0", "p0", "d0", "d0"]


async def test_a_failed_decode_is_not_sent_to_the_same_prefill_again() -> None:
    """It may have failed over that one's KV, which it does not say."""
    fails = asyncio.Event()
    bad = After(fails, EngineFailed("500"))
    engines = Scripted(p0=prefilled(), p1=prefilled(), d1=bad, d0=OK)
    crossing = Crossing(engines, P0, P1, D0, D1)
    asking = asyncio.create_task(crossing.ask(chat()))
    await engines.waits("d1").wait()

    # The round-robin policy would name the same prefill engine again.
    crossing.scheduler.reserve(Role.PREFILL, chat()).end()
    fails.set()

    assert (await asking).body == OK[0]
    assert sorted(engines.visits[::2]) == ["p0", "p1"]


async def test_no_attempt_begins_when_the_time_for_it_is_over() -> None:
    now = 0.0
    fails = asyncio.Event()
    engines = Scripted(p1=After(fails, EngineFailed("late")), p0=prefilled(), d0=OK)
    crossing = Crossing(engines, P0, P1, D0, clock=lambda: now, retry_seconds=10.0)
    asking = asyncio.create_task(crossing.ask(chat()))
    await engines.waits("p1").wait()
    now = 10.0
    fails.set()

    assert str((await asking).error) == "late"
    assert engines.visits == ["p1"]


async def test_what_a_call_waited_for_room_is_not_time_for_its_attempts() -> None:
    now = 0.0
    fails = asyncio.Event()
    engines = Scripted(p1=After(fails, EngineFailed("late")), p0=prefilled(), d0=OK)
    crossing = Crossing(engines, P0, P1, D0, clock=lambda: now, retry_seconds=10.0)
    asking = asyncio.create_task(crossing.ask(chat()))
    await engines.waits("p1").wait()
    crossing.called[0].record.queued_seconds = 500.0
    now = 501.0
    fails.set()

    assert (await asking).body == OK[0]
