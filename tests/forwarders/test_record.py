"""What is noted of a call: from here come metrics, the log line and the trace."""

import asyncio
import json

from pdgate.forwarders.record import Record
from pdgate.protocols.errors import EngineFailed, EngineRejected
from pdgate.protocols.instance import Role
from tests.support.answers import piece, prefilled, whole
from tests.support.clock import Clock
from tests.support.scripted import D0, D1, P0, After, Crossing, Scripted, Told, chat


async def step(
    engines: Scripted, clock: Clock, engine: str, seconds: float, gate: asyncio.Event
) -> None:
    """Lets an engine take that long."""
    await engines.waits(engine).wait()
    engines.waits(engine).clear()
    clock.now += seconds
    gate.set()


async def timed_call() -> tuple[Told, Clock]:
    """Prefill takes 2 s, decode's first byte 0.5 s, the rest 4 s."""
    clock, gates = Clock(100.0), [asyncio.Event() for _ in range(3)]
    engines = Scripted(
        p0=After(gates[0], prefilled()),
        d0=[gates[1], piece("a"), gates[2], piece("b")],
    )
    asking = asyncio.create_task(Crossing(engines, P0, D0, clock=clock).ask(chat()))
    await step(engines, clock, "p0", 2.0, gates[0])
    await step(engines, clock, "d0", 0.5, gates[1])
    await step(engines, clock, "d0", 4.0, gates[2])
    told = await asking
    told.record.end("ok", 200)
    return told, clock


async def test_each_stage_has_its_time() -> None:
    told, _ = await timed_call()

    assert told.record.stages_ms() == {
        "choose_prefill": 0.0,
        "prefill": 2000.0,
        "choose_decode": 0.0,
        "kv_wait": 500.0,
        "decode_first_byte": 500.0,
        "decode": 4000.0,
        "first_byte": 2500.0,
        "total": 6500.0,
    }


def test_media_are_encoded_before_the_wait_for_a_turn() -> None:
    clock = Clock(100.0)
    record = Record(chat(), clock)
    record.attempts = 1
    clock.now += 1.0
    encoding = record.leg(Role.ENCODE, P0)
    clock.now += 3.0
    encoding.end(None)
    assert record.joined_line == clock.now
    record.queued_seconds = 5.0
    clock.now += 5.25
    record.leg(Role.PREFILL, P0)

    assert record.stages() == {"encode": 3.0, "queue": 5.0, "choose_prefill": 0.25}


def test_the_time_to_choose_is_that_of_the_last_attempt() -> None:
    clock = Clock(100.0)
    record = Record(chat(), clock)
    for record.attempts, choosing_seconds in ((1, 1.0), (2, 0.5)):
        clock.now += choosing_seconds
        prefill = record.leg(Role.PREFILL, P0)
        clock.now += 7
        prefill.end(None)

    assert record.stages_ms() == {"choose_prefill": 500.0, "prefill": 7000.0}


async def test_a_record_is_json_with_every_leg() -> None:
    told, _ = await timed_call()

    found = json.loads(json.dumps(told.record.as_json()))

    stages = found.pop("stages_ms")
    assert stages["total"] == 6500.0
    assert found == {
        "id": "call-1",
        "attempt_id": "call-1-first",
        "api": "/v1/chat/completions",
        "model": "m",
        "shared": None,
        "key": "",
        "trace_id": None,
        "protocol": "vllm-nixl",
        "mode": "batch",
        "path": "disaggregated",
        "why_local": "",
        "kv": "handed_over",
        "resumed": 0,
        "gave_way_ms": [],
        "made_way": 0,
        "not_resumed": "",
        "status": 200,
        "outcome": "ok",
        "tokens": None,
        "session": None,
        "attempts": [
            {
                "decision": {"taken": "split", "reason": "always asked for", "expected_ms": {}},
                "legs": [
                    {
                        "role": "prefill",
                        "instance": "p0",
                        "started_ms": 0.0,
                        "ended_ms": 2000.0,
                        "outcome": "ok",
                    },
                    {
                        "role": "decode",
                        "instance": "d0",
                        "started_ms": 2000.0,
                        "ended_ms": 6500.0,
                        "outcome": "ok",
                    },
                ],
            }
        ],
    }


async def test_every_attempt_is_noted() -> None:
    engines = Scripted(p0=prefilled(), d1=EngineFailed("500"), d0=[piece("a")])

    told = await Crossing(engines, P0, D0, D1).ask(chat())

    attempts = told.record.as_json()["attempts"]
    assert [[leg["instance"] for leg in one["legs"]] for one in attempts] == [
        ["p0", "d1"],
        ["p0", "d0"],
    ]
    assert [leg["outcome"] for one in attempts for leg in one["legs"]] == [
        "ok",
        "engine_failed",
        "ok",
        "ok",
    ]


async def test_nothing_was_handed_over_when_decode_never_answered() -> None:
    engines = Scripted(p0=prefilled(), d0=EngineFailed("500"))

    told = await Crossing(engines, P0, D0).ask(chat())

    assert told.record.as_json()["kv"] == "none"
    assert told.record.committed is None


async def test_the_outcome_of_a_rejected_leg_is_named() -> None:
    engines = Scripted(p0=EngineRejected(400, (), b"no"))

    told = await Crossing(engines, P0, D0).ask(chat())

    assert told.record.legs[0].outcome == "EngineRejected"


async def test_a_call_that_runs_has_no_end_yet() -> None:
    gate = asyncio.Event()
    engines = Scripted(p0=prefilled(), d0=[piece("a"), gate, piece("b")])
    crossing = Crossing(engines, P0, D0)
    asking = asyncio.create_task(crossing.ask(chat()))
    await engines.waits("d0").wait()

    found = crossing.called[0].record.as_json()

    assert (found["outcome"], found["status"]) == ("running", 0)
    assert found["attempts"][0]["legs"][1]["ended_ms"] is None
    assert {"decode", "total"}.isdisjoint(found["stages_ms"])
    gate.set()
    await asking


def test_a_call_ends_once() -> None:
    """What happened first is what the client saw."""
    clock = Clock(100.0)
    record = Record(chat(), clock)
    clock.now += 1
    record.end("client_gone", 499)
    clock.now += 1
    record.end("ok", 200)

    assert (record.outcome, record.status, record.ended) == ("client_gone", 499, 101.0)


async def test_a_whole_answer_is_noted_like_a_stream() -> None:
    engines = Scripted(p0=prefilled(), d0=whole("a"))

    told = await Crossing(engines, P0, D0).ask(chat(stream=False))

    assert told.record.handed_over
    assert told.record.committed is not None
