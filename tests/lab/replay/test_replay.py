"""Calls of a trace, really sent: to scripted engines, and through a gateway to real ones."""

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from pdgate.__main__ import app
from pdgate.lab.replay.connection import ReplayServer
from pdgate.lab.replay.driving import STOPPED, Drive, drive
from pdgate.lab.replay.figures import figures
from pdgate.lab.replay.outcome import ReplayOutcome
from pdgate.lab.replay.prompts import HIGHEST_ID, LOWEST_ID, Prompts
from pdgate.lab.simulator.trace import BLOCK_TOKENS, TraceCall
from pdgate.scheduling.policy_context import Targets
from tests.support import waiting
from tests.support.raw_server import Peer, Script, chunked, raw_server, reply

GIVE_UP_SECONDS = waiting.PATIENCE_SECONDS


def event(**fields: Any) -> bytes:
    return b"data: " + json.dumps(fields).encode() + b"\n\n"


def piece(text: str, finish: str | None = None) -> bytes:
    return event(choices=[{"index": 0, "text": text, "finish_reason": finish}])


def usage(tokens: int) -> bytes:
    return event(choices=[], usage={"prompt_tokens": 7, "completion_tokens": tokens})


DONE = b"data: [DONE]\n\n"
WHOLE = (piece("a"), piece("b"), piece("c", "length"), usage(3), DONE)


def ask(
    at: float = 0.0, blocks: Sequence[int] = (), tokens: int = 40, answer: int = 3
) -> TraceCall:
    return TraceCall(at, tokens, answer, tuple(blocks))


async def replayed(
    script: Script, *asks: TraceCall, limit: int | None = None
) -> list[ReplayOutcome]:
    async with asyncio.timeout(GIVE_UP_SECONDS), raw_server(script) as engine:
        plan = Drive(ReplayServer.of(engine.url), "m", Prompts("ids"), limit=limit)
        return await drive(plan, asks)


def says(*pieces: bytes) -> Script:
    async def script(peer: Peer) -> None:
        await peer.send(*pieces)

    return script


async def test_a_whole_answer_is_timed_and_counted() -> None:
    async def script(peer: Peer) -> None:
        await peer.send(chunked(*WHOLE))

    (one,) = await replayed(script, ask())

    assert (one.why, one.tokens, one.prompt_tokens, len(one.gaps)) == ("", 3, 7, 2)
    assert one.ttft is not None
    assert one.whole is not None
    assert one.tpot == pytest.approx(sum(one.gaps) / 2)
    assert 0 < one.ttft <= one.whole
    assert one.good(Targets(one.ttft, one.tpot or 0))
    assert not one.good(Targets(one.ttft / 2, 1.0))


async def test_a_call_is_not_sent_before_its_time() -> None:
    late = await replayed(says(chunked(*WHOLE)), ask(), ask(at=0.2))

    assert late[1].sent >= 0.2


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (chunked(piece("a"), piece("b"), piece("c", "length"), usage(3)), "ends without [DONE]"),
        (chunked(piece("a", "stop"), usage(1), DONE), "finish_reason stop"),
        (chunked(piece("a", "length"), usage(2), DONE), "wrong number of tokens"),
        (chunked(piece("a"), event(error={"code": "engine_failed"}), DONE), "engine_failed"),
        (chunked(b"data: {\n\n"), "malformed stream"),
        (chunked(*WHOLE, piece("d")), "goes on after [DONE]"),
        (reply(b'{"error": {"code": "overloaded"}}', b"429 Too Many"), "status 429 overloaded"),
        (reply(b"<html>", b"502 Bad Gateway"), "status 502"),
        (b"nonsense\r\n\r\n", "no HTTP"),
    ],
)
async def test_an_answer_that_is_not_right_is_lost_and_its_kind_is_told(
    answer: bytes, why: str
) -> None:
    outcomes = await replayed(says(answer), ask())

    ((told, count),) = figures(outcomes, Targets(5, 5)).lost.items()
    assert (why in told, count) == (True, 1)
    assert figures(outcomes, Targets(5, 5)).goodput == 0


async def test_an_answer_that_breaks_off_is_lost() -> None:
    async def script(peer: Peer) -> None:
        await peer.send(chunked(*WHOLE)[:-20])
        await peer.close()

    (one,) = await replayed(script, ask())

    assert one.why == "connection lost"


async def test_nobody_there_is_a_kind_of_its_own() -> None:
    async with raw_server(says()) as engine:
        server = ReplayServer.of(engine.url)
    (one,) = await drive(Drive(server, "m", Prompts("ids")), [ask()])

    assert one.why == "connection refused"


async def test_connections_are_used_again() -> None:
    script = says(chunked(*WHOLE))
    async with asyncio.timeout(GIVE_UP_SECONDS), raw_server(script) as engine:
        plan = Drive(ReplayServer.of(engine.url), "m", Prompts("ids"), limit=1)
        outcomes = await drive(plan, [ask() for _ in range(5)])

        assert [one.why for one in outcomes] == [""] * 5
        assert engine.connections == 1


async def test_no_more_calls_at_a_time_than_the_limit() -> None:
    running, most = 0, 0
    together = asyncio.Event()

    async def script(peer: Peer) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        if running == 2:
            together.set()
        await together.wait()
        running -= 1
        await peer.send(chunked(*WHOLE))

    outcomes = await replayed(script, *[ask() for _ in range(6)], limit=2)

    assert (most, [one.why for one in outcomes]) == (2, [""] * 6)


async def test_told_to_stop_it_tells_what_it_has() -> None:
    stop = asyncio.Event()

    async def script(peer: Peer) -> None:
        if b'"max_tokens":3' in peer.request.body:
            await peer.send(chunked(*WHOLE))
        else:
            stop.set()
            await peer.gone()

    async with asyncio.timeout(GIVE_UP_SECONDS), raw_server(script) as engine:
        # The second is sent when the first is over, however late that is.
        plan = Drive(ReplayServer.of(engine.url), "m", Prompts("ids"), limit=1)
        asks = [ask(), ask(at=0.1, answer=9), ask(at=3600.0)]
        outcomes = await drive(plan, asks, stop=stop)

    assert [one.why for one in outcomes] == ["", STOPPED]


def ids_of(prompts: Prompts, number: int, one: TraceCall) -> list[int]:
    found: list[int] = json.loads(bytes(prompts.of(number, one)))
    return found


def test_prompts_begin_alike_where_the_trace_says_so() -> None:
    prompts = Prompts("ids", block_tokens=16)
    tokens = 3 * BLOCK_TOKENS + 64
    one, other = (ask(blocks=(1, 2, last), tokens=tokens) for last in (3, 4))

    first, second = ids_of(prompts, 0, one), ids_of(prompts, 1, other)

    assert len(first) == len(second) == prompts.tokens(one) == 3 * 16 + 2
    assert first[:32] == second[:32]
    assert first[32:48] != second[32:48]
    assert ids_of(prompts, 0, one) == first
    assert ids_of(prompts, 2, one)[48:] != first[48:], "the rest is each call's own"
    assert ids_of(Prompts("ids", 16, seed=1), 0, one)[:16] != first[:16]
    assert all(LOWEST_ID <= id <= HIGHEST_ID for id in first)


def test_text_has_a_byte_for_a_token() -> None:
    text = json.loads(bytes(Prompts("text", 16).of(0, ask(blocks=(1,), tokens=BLOCK_TOKENS + 32))))

    assert len(text.encode()) == 17


def test_a_driver_that_is_late_says_so() -> None:
    on_time, late = (
        [ReplayOutcome(ask(), 3, due=1.0, sent=1.0 + by, why="") for _ in range(10)]
        for by in (0.001, 0.2)
    )

    assert figures(on_time, Targets(1, 1)).doubt == ""
    assert "late, by 200 ms" in figures(late, Targets(1, 1)).doubt


def typed(*words: str) -> Result:
    return CliRunner(env={"COLUMNS": "200"}).invoke(app, ["replay", *words])


LINE = '{"timestamp": 0, "input_length": 5, "output_length": 5, "hash_ids": []}\n'


@pytest.fixture
def trace(tmp_path: Path) -> str:
    path = tmp_path / "t.jsonl"
    path.write_text(LINE)
    return str(path)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--url", "localhost:8000"], "is no URL"),
        (["--url", "http://127.0.0.1:9"], "nobody answers at http://127.0.0.1:9"),
        (["--url", "http://a", "--scale", "0"], "--scale must be a number above 0"),
        (["--url", "http://a", "--scale", "nan"], "--scale must be a number above 0"),
        (["--url", "http://a", "--seconds", "-1"], "--seconds must be a number above 0"),
        (["--url", "http://a", "--slo-ttft", "0"], "--slo-ttft must be a number above 0"),
        (["--url", "http://a", "--max-tokens-scale", "-2"], "--max-tokens-scale must be"),
        (["--url", "http://a", "--api-key-file", "gone"], "gone cannot be read"),
        (["--url", "http://a", "--out", "/dev/null/x"], "cannot be made"),
        (["--url", "http://a", "--limit", "0"], "--limit"),
    ],
)
def test_a_bad_flag_is_one_sentence(trace: str, words: list[str], sentence: str) -> None:
    result = typed("--trace", trace, *words)

    assert result.exit_code == 2
    assert sentence in result.stderr
    assert result.stdout == ""


def test_a_broken_line_is_named(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text(LINE + '{"timestamp": "x"}\n')

    result = typed("--trace", str(path), "--url", "http://a")

    assert result.exit_code == 2
    assert "t.jsonl, line 2: " in result.stderr
