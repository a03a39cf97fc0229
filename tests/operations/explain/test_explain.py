"""The story of one call, from a real gateway's record of it."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from pdgate.__main__ import app
from pdgate.operations.explain.story import story
from pdgate.protocols.instance import Role
from tests.support.fleet import Engine, Gateway, engine_error, gateway_of, says

TOKEN = "a-token-of-the-operators"


async def explain(*args: str) -> Result:
    """On a thread, as the gateway that it asks serves in this loop."""
    return await asyncio.to_thread(CliRunner().invoke, app, ["explain", *args])


def at(gateway: Gateway) -> list[str]:
    return ["--gateway", str(gateway.http.base_url)]


async def test_the_story_of_a_call_that_was_retried() -> None:
    broken = says(engine_error(b"500 Internal Server Error", "broken"))
    engines = Engine(Role.PREFILL), Engine(Role.DECODE, broken), Engine(Role.DECODE)
    async with gateway_of(*engines, debug_routes=True, decode_policy="round_robin") as gateway:
        for name in ("one", "two"):
            await gateway.chat({"x-request-id": name})
        told = [(await explain(name, *at(gateway))).stdout for name in ("one", "two")]

    lines = next(text for text in told if "attempt 2" in text).splitlines()
    assert lines[0].startswith("call ")
    assert ", model m: ok (200) after " in lines[0]
    assert lines[1] == (
        "  vllm-nixl, batch: split over two engines; "
        "decode answered to the KV that prefill left for it"
    )
    assert lines[2] == "attempt 1: split over prefill and decode, because: always asked for"
    assert any(line.split()[:3] == ["decode", "decode-0", "engine_failed"] for line in lines)
    assert any(line.split()[:3] == ["decode", "decode-1", "ok"] for line in lines)
    assert any("left out: decode-0, as it has failed this call before" in line for line in lines)
    assert any("decided by: lowest turn (0, then 1)" in line for line in lines)
    assert any("chosen by round_robin: each in turn (turn 0)" in line for line in lines)


async def test_programs_get_the_record() -> None:
    async with gateway_of(Engine(Role.PLAIN), debug_routes=True) as gateway:
        await gateway.chat({"x-request-id": "mine"})
        told = await explain("mine", *at(gateway), "--json")
        record = (await gateway.http.get("/debug/calls/mine")).text

    assert told.exit_code == 0
    assert json.loads(told.stdout) == json.loads(record)


@pytest.mark.parametrize(
    ("settings", "words"),
    [({}, "start it with --debug-routes"), ({"debug_routes": True}, "knows no call 'mine'")],
)
async def test_what_cannot_be_told_is_a_sentence(settings: dict[str, Any], words: str) -> None:
    async with gateway_of(Engine(Role.PLAIN), **settings) as gateway:
        told = await explain("mine", *at(gateway))

    assert told.exit_code == 2
    assert words in told.stderr
    assert len(told.stderr.splitlines()) == 1


async def test_an_admin_listener_wants_its_token(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text(TOKEN)
    more = {"admin_token_file": str(token), "admin_listen": "127.0.0.1:0", "debug_routes": True}
    async with gateway_of(Engine(Role.PLAIN), **more) as gateway:
        await gateway.chat({"x-request-id": "mine"})
        admin = ["--gateway", gateway.admin_url]
        without = await explain("mine", *admin)
        elsewhere = await explain("mine", *at(gateway))
        told = await explain("mine", *admin, "--admin-token-file", str(token))

    assert (without.exit_code, elsewhere.exit_code, told.exit_code) == (2, 2, 0)
    assert "--admin-token-file" in without.stderr
    assert "--admin-listen" in elsewhere.stderr


@pytest.mark.parametrize(
    ("flags", "code", "words"),
    [
        (["--gateway", "nonsense"], 2, "is not a URL"),
        (["--gateway", "http://127.0.0.1:port"], 2, "is not a URL"),
        (["--gateway", "http://127.0.0.1:99999"], 2, "is not a URL"),
        (["--gateway", "http://[::1"], 2, "is not a URL"),
        (["--gateway", "http://127.0.0.1:1"], 1, "does not answer"),
        (["--admin-token-file", "/nowhere"], 2, "cannot read /nowhere"),
    ],
)
async def test_bad_flags_are_a_sentence(flags: list[str], code: int, words: str) -> None:
    told = await explain("mine", *flags)

    assert told.exit_code == code
    assert words in told.stderr
    assert "Traceback" not in told.stderr


def test_a_timeline_shows_when_each_leg_ran() -> None:
    legs = [
        leg("prefill", "p0", 0, 50),
        leg("decode", "d0", 50, 100),
        leg("decode", "d1", 50, None),
    ]
    record = {
        "id": "c",
        "outcome": "running",
        "attempts": [{"decision": None, "legs": legs}],
        "stages_ms": {"total": 100.0},
    }

    bars = [line[line.index("|") :] for line in story(record) if "|" in line]

    half = "=" * 16, " " * 16
    assert bars == [f"|{half[0]}{half[1]}|", *[f"|{half[1]}{half[0]}|"] * 2]


def leg(role: str, at: str, started: float, ended: float | None) -> dict[str, Any]:
    times = {"started_ms": float(started), "ended_ms": ended}
    return {"role": role, "instance": at, **times, "outcome": "ok" if ended else "running"}


def test_a_choice_that_was_not_made_is_told() -> None:
    nobody = {"attempt": 1, "role": "decode", "policy": "", "chosen": None, "considered": []}
    out = [{"instance": "d0", "why": "it is down"}]
    record = {
        "id": "c",
        "outcome": "no_instance",
        "attempts": [{"decision": None, "legs": []}],
        "choices": [{**nobody, "left_out": out}],
    }

    assert story(record)[-2:] == [
        "  decode   there was nobody to choose",
        "           left out: d0, as it is down",
    ]


def test_a_choice_can_be_computed_again_from_the_lines() -> None:
    """The better score did not win: all that the rule compares stands there, the rule as well."""
    steps = [
        ("score", "score within 0.05 of the highest"),
        ("in_flight_tokens", "lowest in_flight_tokens"),
    ]
    of = {"p0": (-0.2999, 0), "p1": (-0.2504, 900)}
    choice = {
        "attempt": 1,
        "role": "prefill",
        "policy": "slo",
        "chosen": "p0",
        "rule": [{"by": by, "words": words} for by, words in steps],
        "decided_by": "lowest in_flight_tokens (0, then 900)",
        "considered": [
            {"instance": name, "score": score, "values": {"in_flight_tokens": load}, "why": "soon"}
            for name, (score, load) in of.items()
        ],
    }
    attempt = {"decision": None, "legs": [leg("prefill", "p0", 0, 50)]}
    lines = story({"id": "c", "outcome": "ok", "attempts": [attempt], "choices": [choice]})

    assert [line.strip() for line in lines[-4:]] == [
        "chosen by slo: soon (score -0.2999, in_flight_tokens 0)",
        "decided by: lowest in_flight_tokens (0, then 900)",
        "by the rule: score within 0.05 of the highest, then lowest in_flight_tokens",
        "rather than p1: soon (score -0.2504, in_flight_tokens 900)",
    ]


@pytest.mark.parametrize(("first", "shown"), [(30.04, False), (80.0, True)])
def test_the_same_time_does_not_stand_twice(first: float, shown: bool) -> None:
    """Asked together with P, as in SGLang, D's first byte is another time than the wait for KV."""
    stages = {"kv_wait": 30.0, "decode_first_byte": first, "total": 100.0}

    line = story({"id": "c", "outcome": "ok", "attempts": [], "stages_ms": stages})[-1]

    assert "kv_wait 30.0" in line
    assert ("decode_first_byte" in line) is shown


def test_who_gave_way_and_for_how_long_is_told() -> None:
    lines = story({"id": "mine", "gave_way_ms": [[12.5, 40.0], [50.0, 61.25]], "made_way": 2})

    assert [line.strip() for line in lines[1:]] == [
        "2 running calls of less urgency gave way to it, as it would have been late",
        "it gave way to a more urgent call at 12.5 ms, and went on at 40.0 ms",
        "it gave way to a more urgent call at 50.0 ms, and went on at 61.2 ms",
    ]


def test_a_session_is_told_by_what_passed_and_how_it_ended() -> None:
    session = {
        "seconds": 61.24, "ended_by": "closed", "close_code": 1000,
        "messages": {"client": 640, "engine": 97}, "bytes": {"client": 2621440, "engine": 11873},
    }  # fmt: skip
    passed = "640 messages (2621440 bytes) of the client, 97 messages (11873 bytes) of the engine"
    assert story({"id": "c", "session": session})[1] == (
        f"  a session: open for 61.2 s, then closed (1000); {passed}"
    )
    runs = {**session, "ended_by": None, "close_code": None}
    assert story({"id": "c", "session": runs})[1] == f"  a session: open for 61.2 s; {passed}"
