"""Until the first byte is committed, a failure leads to another engine; afterwards it does not."""

import asyncio
from collections.abc import Mapping
from dataclasses import replace

import msgspec
import pytest

from pdgate.forwarders.base import Mode
from pdgate.forwarders.choices import OnPrefillFailure
from pdgate.protocols import sse
from pdgate.protocols.errors import (
    EngineBusy,
    EngineFailed,
    EngineFrozen,
    EngineRefused,
    EngineRejected,
    EngineTooSlow,
    GatewayError,
)
from pdgate.protocols.instance import Instance, Role
from pdgate.scheduling.disaggregation import Never, SplitRule
from tests.support.answers import error, opening, piece, prefilled, usage, whole
from tests.support.scripted import (
    D0,
    D1,
    NEVER,
    P0,
    P1,
    After,
    Crossing,
    Script,
    Scripted,
    Step,
    Turns,
    chat,
)

OK = [b"data: fine\n\n"]
BAD_STARTS: dict[str, Script] = {
    "refused": EngineRefused("down"),
    "status 500": EngineFailed("500"),
    "status 503": EngineBusy("full"),
    "too slow": EngineTooSlow("slow"),
    "cut before a byte": [EngineFailed("cut")],
    "empty": [],
    "abort in the first event": [piece("", "abort")],
    "abort in two halves": [piece("", "abort")[:-30], piece("", "abort")[-30:]],
    "abort after the role": [opening(), piece("", "abort")],
    "cut after the role": [opening(), EngineFailed("cut")],
    "error as first event": [error(500)],
    "error in two halves": [error(500)[:20], error(500)[20:]],
    "error after the role": [opening(), error(500)],
    "error with the role": [opening() + error(500)],
    "an end that is none": [sse.DONE],
    "an end after the role": [opening(), sse.DONE],
    "an end after the role and the usage": [opening(), usage(0), sse.DONE],
    "nothing after the role": [opening()],
    "nothing after several roles": [opening() + opening(), usage(0)],
}


@pytest.mark.parametrize("bad", BAD_STARTS.values(), ids=BAD_STARTS)
@pytest.mark.parametrize("mode", Mode)
async def test_a_decode_that_starts_badly_is_replaced(bad: Script, mode: Mode) -> None:
    engines = Scripted(p0=prefilled(), p1=prefilled(), d0=bad, d1=bad)
    crossing = Crossing(engines, P0, D0, D1, mode=mode)
    engines.scripts["d0"] = OK

    told = await crossing.ask(chat())

    assert told.body == OK[0]
    assert engines.visits[-2:] == ["p0", "d0"] or engines.visits == ["p0", "d1", "d0"]


@pytest.mark.parametrize("works", [True, False])
async def test_who_waited_for_a_frozen_prefill_goes_to_another_only_if_that_works(
    works: bool,
) -> None:
    """Else decode reads the prompt: cores that froze at once are not waited for one by one."""
    engines = Scripted(p0=EngineFrozen("frozen"), p1=EngineFrozen("frozen"), d0=OK)
    crossing = Crossing(engines, P0, P1, D0)
    for endpoint in crossing.endpoints:
        endpoint.worked_lately = works
    told = await crossing.ask(chat())

    assert told.body == OK[0]
    assert len(engines.visits) == (3 if works else 2)
    assert engines.visits[-1] == "d0"


@pytest.mark.parametrize("bad", ["refused", "status 500", "status 503", "too slow"])
async def test_a_prefill_that_fails_is_replaced(bad: str) -> None:
    engines = Scripted(p1=BAD_STARTS[bad], p0=prefilled(), d0=OK)

    told = await Crossing(engines, P0, P1, D0).ask(chat())

    assert told.body == OK[0]
    assert engines.visits == ["p1", "p0", "d0"]


async def test_a_prefill_that_gave_up_is_replaced() -> None:
    """Its answer is a good one but for the finish_reason."""
    gave_up = prefilled() | {"choices": [{"index": 0, "finish_reason": "abort"}]}
    engines = Scripted(p1=gave_up, p0=prefilled(), d0=OK)

    assert (await Crossing(engines, P0, P1, D0).ask(chat())).body == OK[0]
    assert engines.visits == ["p1", "p0", "d0"]


async def test_a_prefill_without_blocks_is_replaced() -> None:
    engines = Scripted(p1=whole("a"), p0=prefilled(), d0=OK)

    assert (await Crossing(engines, P0, P1, D0).ask(chat())).body == OK[0]
    assert engines.visits == ["p1", "p0", "d0"]


@pytest.mark.parametrize("bad", [whole("a", finish="abort"), [], [b'{"cho', EngineFailed("cut")]])
async def test_a_bad_json_answer_is_replaced(bad: Script) -> None:
    """Half a JSON answer is of no use, so it is held until it is whole."""
    engines = Scripted(p0=prefilled(), d1=bad, d0=whole("fine"))

    told = await Crossing(engines, P0, D0, D1).ask(chat(stream=False))

    assert b"fine" in told.body


async def test_each_attempt_has_an_id_of_its_own_and_both_legs_share_it() -> None:
    """Engines pair the legs by it; a reused one would pair them with a stale leg."""
    engines = Scripted(p0=prefilled(), d1=EngineFailed("500"), d0=OK)

    told = await Crossing(engines, P0, D0, D1).ask(chat())

    first, second = engines.attempt_ids[:2], engines.attempt_ids[2:]
    assert len(set(first)) == len(set(second)) == 1
    assert first[0] != second[0]
    assert second[0].startswith("call-1-")
    assert told.record.call.attempt_id == second[0]


async def test_each_attempt_has_a_transfer_id_of_its_own() -> None:
    """A reused one makes decode read another request's cache: wrong tokens."""
    ids = ((0, "engine-p"),)
    p0, d0, d1 = (replace(one, protocol="vllm-mooncake", generation="d") for one in (P0, D0, D1))
    p0 = replace(p0, engine_ids=ids)
    engines = Scripted(p0=prefilled(), d1=EngineFailed("500"), d0=OK)

    await Crossing(engines, p0, d0, d1).ask(chat())

    used = {
        attempt: leg.body["kv_transfer_params"]["transfer_id"]
        for leg, attempt in engines.sent
        if leg.to.id.startswith("d")
    }
    assert len(used) == len(set(used.values())) == 2


async def test_the_only_engine_gets_a_second_chance() -> None:
    """It may have stumbled over its peer."""
    engines = Scripted(p0=prefilled(), d0=Turns(EngineFailed("once"), OK))

    assert (await Crossing(engines, P0, D0).ask(chat())).body == OK[0]


async def test_an_engine_gets_two_chances_at_most() -> None:
    engines = Scripted(p0=prefilled(), d0=EngineFailed("always"))

    only_retry = OnPrefillFailure.RETRY
    crossing = Crossing(engines, P0, D0, max_attempts=9, on_prefill_failure=only_retry)
    told = await crossing.ask(chat())

    assert str(told.error) == "always"
    assert engines.visits.count("d0") == 2


@pytest.mark.parametrize("final", [EngineRefused("down"), EngineTooSlow("slow")])
async def test_who_refused_or_was_too_slow_gets_no_second_chance(final: GatewayError) -> None:
    engines = Scripted(p0=prefilled(), d0=final)

    told = await Crossing(engines, P0, D0).ask(chat())

    assert told.error is final
    assert engines.visits == ["p0", "d0"]


TOO_LONG = EngineRejected(400, (), error(400))
ONCE_BAD = {
    "full": EngineBusy("full"),
    "failed": EngineFailed("the engine answered with status 500"),
    "gave up": [piece("", "abort")],
}


def with_lengths(
    engines: Scripted, lengths: Mapping[Instance, int], rule: SplitRule | None = None
) -> Crossing:
    crossing = Crossing(engines, *lengths, rule=rule)
    for one, length in lengths.items():
        crossing.endpoints.mark_up(one.id, ["m"], {"m": length}, strict=True)
    return crossing


@pytest.mark.parametrize("bad", ONCE_BAD.values(), ids=ONCE_BAD.keys())
@pytest.mark.parametrize("rule", [None, Never()], ids=["split", "local"])
async def test_the_only_decode_with_room_gets_its_second_chance(
    rule: SplitRule | None, bad: Script
) -> None:
    """The other one has not failed the call, but would refuse it, and its refusal would be the client's."""
    engines = Scripted(p0=prefilled(), p1=prefilled(), d0=TOO_LONG, d1=Turns(bad, OK))
    crossing = with_lengths(engines, {P0: 8000, P1: 8000, D0: 1000, D1: 8000}, rule)

    told = await crossing.ask(chat(max_tokens=2000))

    assert (told.error, told.chunks) == (None, OK)
    assert [one for one in engines.visits if one.startswith("d")] == ["d1", "d1"]


@pytest.mark.parametrize("role", [Role.PREFILL, Role.BOTH])
async def test_the_only_engine_with_room_for_the_prompt_gets_its_second_chance(role: Role) -> None:
    busy_once = Turns(EngineBusy("full"), prefilled() if role is Role.PREFILL else OK)
    engines = Scripted(p0=busy_once, p1=TOO_LONG, d0=OK)
    lengths = {replace(P0, role=role): 8000, replace(P1, role=role): 1000}
    if role is Role.PREFILL:
        lengths[D0] = 8000
    call = msgspec.structs.replace(chat(max_tokens=10), prompt_tokens=2000)

    told = await with_lengths(engines, lengths).ask(call)

    assert (told.error, told.chunks) == (None, OK)
    assert engines.visits[:2] == ["p0", "p0"]


async def test_a_pair_with_room_gets_its_second_chance() -> None:
    """The other pair has not failed the call, and nor has another partner, but they are too short for it."""
    p2, d2 = (replace(one, id=f"{one.id[0]}2", protocol="lmcache") for one in (P0, D0))
    d3 = replace(d2, id="d3")
    engines = Scripted(p0=prefilled(), d0=TOO_LONG)
    engines.scripts |= {"p2": prefilled(), "d2": Turns(EngineBusy("full"), OK), "d3": TOO_LONG}
    crossing = with_lengths(engines, {P0: 8000, D0: 1000, p2: 8000, d2: 8000, d3: 500})

    told = await crossing.ask(chat(max_tokens=2000))

    assert (told.error, told.chunks) == (None, OK)
    assert set(engines.visits) == {"p2", "d2"}


async def test_what_kept_the_only_engine_with_room_from_it_is_told() -> None:
    """Not what one says of its length that is known to be too short."""
    refused = EngineRefused("down")
    engines = Scripted(p0=prefilled(), p1=prefilled(), d0=TOO_LONG, d1=refused)
    crossing = with_lengths(engines, {P0: 8000, P1: 8000, D0: 1000, D1: 8000})

    told = await crossing.ask(chat(max_tokens=2000))

    assert told.error is refused
    assert "d0" not in engines.visits


async def test_one_that_may_have_room_is_asked_where_no_other_is_left() -> None:
    """How many tokens a text has only engines know."""
    engines = Scripted(p0=prefilled(), p1=prefilled(), d0=OK, d1=EngineRefused("down"))
    crossing = with_lengths(engines, {P0: 8000, P1: 8000, D0: 1000, D1: 8000})
    call = msgspec.structs.replace(chat(max_tokens=10), prompt_tokens=600)

    told = await crossing.ask(call)

    assert (told.error, told.chunks) == (None, OK)
    assert engines.visits[-1] == "d0"


async def test_the_first_cause_is_told_when_nobody_is_left() -> None:
    """ "Nobody is up" would send the operator to look at the wrong thing."""
    first, second = EngineTooSlow("first"), EngineRefused("second")
    engines = Scripted(p0=prefilled(), d1=first, d0=second)

    told = await Crossing(engines, P0, D0, D1, max_attempts=9).ask(chat())

    assert told.error is first


async def test_attempts_are_bounded() -> None:
    down: dict[str, Script] = {f"p{n}": EngineFailed(f"p{n}") for n in range(5)}
    engines = Scripted(**down)
    many = [replace(P0, id=f"p{n}") for n in range(5)]

    only_retry = OnPrefillFailure.RETRY
    crossing = Crossing(engines, *many, D0, max_attempts=3, on_prefill_failure=only_retry)
    told = await crossing.ask(chat())

    assert len(engines.visits) == len(set(engines.visits)) == told.record.attempts == 3
    assert isinstance(told.error, EngineFailed)


async def test_a_refusal_marks_the_engine_down() -> None:
    engines = Scripted(p0=prefilled(), d1=EngineRefused("down"), d0=OK)
    crossing = Crossing(engines, P0, D0, D1)
    await crossing.ask(chat())

    up = {c.instance.id: c.up for c in crossing.endpoints}

    assert up == {"p0": True, "d0": True, "d1": False}


@pytest.mark.parametrize("engine", ["p0", "d0"])
async def test_what_an_engine_calls_wrong_is_never_retried(engine: str) -> None:
    """A 4xx is about the call: every engine would say it again."""
    rejected = EngineRejected(422, (), b"too long")
    engines = Scripted(p0=prefilled(), d0=OK)
    engines.scripts[engine] = rejected

    told = await Crossing(engines, P0, D0).ask(chat())

    assert told.error is rejected
    assert engines.visits[-1] == engine
    assert engines.visits.count(engine) == 1


@pytest.mark.parametrize("before", [[], [opening()]])
async def test_an_error_event_with_a_client_code_is_a_rejection(before: list[bytes]) -> None:
    engines = Scripted(p0=prefilled(), d0=[*before, error(400)])

    told = await Crossing(engines, P0, D0).ask(chat())

    assert isinstance(told.error, EngineRejected)
    assert told.error.answer_status == 400
    assert told.error.body == error(400)[6:-2]
    assert engines.visits == ["p0", "d0"]


async def test_nothing_is_retried_once_a_byte_is_out() -> None:
    """The client would get one answer's head with another's tail."""
    engines = Scripted(p0=prefilled(), d1=[piece("a"), EngineFailed("cut")], d0=OK)

    told = await Crossing(engines, P0, D0, D1).ask(chat())

    assert told.chunks == [piece("a")]
    assert str(told.error) == "cut"
    assert engines.visits == ["p0", "d1"]


async def test_the_opening_chunk_waits_for_what_follows() -> None:
    """Engines send it before they know whether the call goes well."""
    gate = asyncio.Event()
    engines = Scripted(p0=prefilled(), d0=[opening(), gate, piece("a")])
    crossing = Crossing(engines, P0, D0)
    asking = asyncio.create_task(crossing.ask(chat()))
    await engines.waits("d0").wait()

    assert crossing.called[0].chunks == []

    gate.set()
    assert (await asking).body == opening() + piece("a")


@pytest.mark.parametrize(
    "end",
    [
        [],
        [EngineFailed("cut")],
        [b'"}], "x": "'],
        [b'"}]}'],
        [b'", "finish_reason": null}]}'],
        [b'", "finish_reason": "abort"}]}'],
    ],
)
async def test_a_long_json_answer_is_relayed_when_it_is_whole(end: list[Step]) -> None:
    """Half of it would be of no use, and another engine may have the other one."""
    long = b'{"choices": [{"text": "' + b"x" * (200 << 10)
    whole = [long, b'", "finish_reason": "stop"}]}']
    engines = Scripted(p0=prefilled(), d0=[long, *end], d1=whole)

    told = await Crossing(engines, P0, D0, D1).ask(chat(stream=False))

    assert told.body == b"".join(whole)
    assert "d1" in engines.visits


async def test_an_endless_first_event_is_relayed_too() -> None:
    long = b"data: " + b"x" * (200 << 10)
    engines = Scripted(p0=prefilled(), d0=[long[:100], long[100:], NEVER])
    crossing = Crossing(engines, P0, D0)
    asking = asyncio.create_task(crossing.ask(chat()))

    await engines.waits("d0").wait()
    await crossing.called[0].hears.wait()

    assert b"".join(crossing.called[0].chunks) == long
    asking.cancel()


async def test_staged_mode_gives_another_decode_the_same_blocks() -> None:
    """Nothing was sent to the one that refused, so the prompt need not be read again."""
    engines = Scripted(p0=prefilled(), d1=EngineRefused("down"), d0=OK)

    told = await Crossing(engines, P0, D0, D1, mode=Mode.STAGED).ask(chat())

    assert told.body == OK[0]
    assert engines.visits == ["p0", "d1", "d0"]
    assert told.record.attempts == 1
    refused, taken = (leg for leg, _ in engines.sent[1:])
    assert refused.body == taken.body
    assert len(set(engines.attempt_ids)) == 1


@pytest.mark.parametrize(("seconds", "prefills"), [(23.9, 1), (24.1, 2)])
async def test_blocks_that_may_be_gone_are_not_fetched(seconds: float, prefills: int) -> None:
    """NIXL's decode answers 200 with wrong tokens after the lease of 30 s; we stop at 80 %."""
    now = 0.0

    def clock() -> float:
        return now

    dialled = asyncio.Event()
    engines = Scripted(p0=prefilled(), d1=After(dialled, EngineRefused("down")), d0=OK)
    crossing = Crossing(engines, P0, D0, D1, mode=Mode.STAGED, clock=clock)
    asking = asyncio.create_task(crossing.ask(chat()))
    await engines.waits("d1").wait()
    now += seconds
    dialled.set()

    assert (await asking).body == OK[0]
    assert engines.visits.count("p0") == prefills


@pytest.mark.parametrize("turn", range(24))
async def test_a_prefill_that_fails_as_decode_begins_spoils_no_answer(turn: int) -> None:
    """Whichever of the two comes first, and in the same turn of the event loop as well."""
    p0, p1, d0 = (replace(one, protocol="sglang") for one in (P0, P1, D0))
    fails, begins = asyncio.Event(), asyncio.Event()
    engines = Scripted(
        p1=After(fails, EngineFailed("cut")),
        p0=prefilled(),
        d0=Turns([begins, piece("a"), piece("b")], OK),
    )
    asking = asyncio.create_task(Crossing(engines, p0, p1, d0).ask(chat()))
    await engines.waits("p1").wait()
    await engines.waits("d0").wait()

    for now in range(24):
        if now == turn:
            fails.set()
        if now == 12:
            begins.set()
        await asyncio.sleep(0)
    told = await asking

    assert told.body in (OK[0], piece("a") + piece("b"))


GAVE_UP = [piece("", "abort")]


@pytest.mark.parametrize("bad", [GAVE_UP, EngineFailed("500"), EngineTooSlow("slow")])
async def test_where_decode_asks_prefill_itself_both_are_done_without(bad: Script) -> None:
    """Only decode is heard of, and it cannot be told which of the two has failed."""
    p0, p1, d0, d1 = (replace(one, protocol="vllm-kvt") for one in (P0, P1, D0, D1))
    goes_on = asyncio.Event()
    engines = Scripted(d1=After(goes_on, bad), d0=OK)
    crossing = Crossing(engines, p0, p1, d0, d1)
    asking = asyncio.create_task(crossing.ask(chat()))
    await engines.waits("d1").wait()

    # The round-robin policy would name the same prefill engine again.
    crossing.scheduler.reserve(Role.PREFILL, chat()).end()
    goes_on.set()
    assert (await asking).body == OK[0]

    asked = [leg.body["kv_transfer_params"]["remote_host"] for leg, _ in engines.sent]
    assert engines.visits == ["d1", "d0"]
    assert sorted(asked) == [p0.host, p1.host]


async def test_the_only_prefill_is_asked_again_by_another_decode() -> None:
    p0, d0, d1 = (replace(one, protocol="vllm-kvt") for one in (P0, D0, D1))
    engines = Scripted(d1=GAVE_UP, d0=OK)

    assert (await Crossing(engines, p0, d0, d1).ask(chat())).body == OK[0]
    assert engines.visits == ["d1", "d0"]


async def test_what_is_to_go_to_one_engine_is_its_to_refuse_after_a_failure_too() -> None:
    engines = Scripted(p0=Turns(EngineBusy("full"), TOO_LONG))
    crossing = with_lengths(engines, {replace(P0, role=Role.PLAIN): 1000})

    told = await crossing.ask(msgspec.structs.replace(chat(max_tokens=2000), at="p0"))

    assert told.error is TOO_LONG
