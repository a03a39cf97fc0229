"""A session leaves what a call leaves: a line in the log that the process writes, and a record while it runs and after."""

import asyncio
import json
import re
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import httpx2
import msgspec
import pytest
from wsproto.events import AcceptConnection, CloseConnection, TextMessage

from pdgate.forwarders.record import Record
from pdgate.gateway.debug import KEPT_RECORDS, RecentCalls
from pdgate.gateway.security.keys import hash_of
from pdgate.operations.explain.story import story
from tests.gateway.realtime.site import PATH, SocketEngine
from tests.gateway.realtime.test_tokens import DELTA, DONE, says
from tests.support.fleet import PATIENCE_SECONDS
from tests.support.processes import Child, child
from tests.support.raw_server import raw_server
from tests.support.scripted import chat
from tests.support.sockets import SocketPeer, dialled, refusal

TOKEN: Final = "of-the-admin-of-the-tests"
ADMIN: Final = {"authorization": f"Bearer {TOKEN}"}
WORD: Final = "sesame"
"""Said by both sides, and in the reason of a goodbye."""

GRACE_SECONDS: Final = 0.3

COMMANDS: Final = {
    "fast": ("pdgate", "serve", "--log-format", "json", "--config"),
    "application": ("tests.gateway.realtime.embedded",),
}

Line = Mapping[str, Any]


class LoggedSite:
    """A gateway as a process of its own, before an engine of the test.

    Attributes:
        http: Asks its operators' routes.
    """

    def __init__(self, process: Child, url: str, engine: SocketEngine) -> None:
        self.process = process
        self.engine = engine
        self.port = int(url.rpartition(":")[2])
        self.http = httpx2.AsyncClient(
            base_url=url, trust_env=False, timeout=PATIENCE_SECONDS, headers=ADMIN
        )

    async def asked(self, call_id: str, key: str = "k", target: str = PATH) -> SocketPeer:
        headers = ("authorization", f"Bearer {key}"), ("x-request-id", call_id)
        return await dialled(self.port, target, *headers)

    async def opened(self, call_id: str, key: str = "k") -> tuple[SocketPeer, SocketPeer]:
        """Client and engine of a session."""
        client = await self.asked(call_id, key)
        assert isinstance(await client.hear(), AcceptConnection)
        return client, await self.engine.sessions.get()

    def lines(self) -> list[Line]:
        """Of calls, so far."""
        said = [
            json.loads(line)
            for line in self.process.log.read_text().splitlines()
            if line[:1] == "{"
        ]
        return [line for line in said if line["logger"] == "pdgate.calls"]

    async def line(self, call_id: str) -> Line:
        def written() -> Line | None:
            return next((line for line in self.lines() if line["id"] == call_id), None)

        return await asyncio.to_thread(self.process.wait_until, written, f"the line of {call_id}")


@pytest.fixture(params=COMMANDS)
async def site(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[LoggedSite]:
    async with _site(tmp_path, COMMANDS[request.param]) as found:
        yield found


@asynccontextmanager
async def _site(folder: Path, command: tuple[str, ...]) -> AsyncIterator[LoggedSite]:
    engine, token, file = SocketEngine(), folder / "token", folder / "pdgate.toml"
    token.write_text(TOKEN)
    async with raw_server(engine.serve) as server:
        engine.url = server.url
        file.write_text(_settings(server.url, token))
        words = [sys.executable, "-m", *command, str(file)]
        running = child(words, log=folder / "log")
        process = await asyncio.to_thread(running.__enter__)
        try:
            pattern = r"(?:listens on|running on) (http://[\d.:]+)"
            url = (await asyncio.to_thread(process.wait_for_line, pattern))[1]
            await asyncio.to_thread(process.wait_for_http, f"{url}/ready")
            site = LoggedSite(process, url, engine)
            async with site.http:
                yield site
        finally:
            await asyncio.to_thread(running.__exit__, *sys.exc_info())


def _settings(engine: str, token: Path) -> str:
    def key(name: str, more: str = "") -> str:
        return f'[[api_keys]]\nname = "of-{name}"\nsha256 = "{hash_of(name.encode())}"\n{more}\n'

    return f"""
call_log = true
admin_token_file = {json.dumps(str(token))}
drain.grace_seconds = {GRACE_SECONDS}
listen.port = 0
[[instances]]
role = "plain"
id = "e0"
url = "{engine}"
{key("k")}
{key("once", "calls_per_minute = 1")}
{key("poor", "tokens_per_day = 12")}
"""


async def test_a_session_that_is_closed_is_one_line_without_a_word_of_it(site: LoggedSite) -> None:
    client, engine = await site.opened("mine")
    await client.say(TextMessage(data=WORD), TextMessage(data=WORD))
    assert [await engine.message(), await engine.message()] == [WORD, WORD]
    said = [await says(engine, event) for event in (DELTA, {**DONE, "text": WORD})]
    assert [await client.message() for _ in said] == said

    running = (await site.http.get("/admin/calls/mine")).json()
    assert (running["outcome"], running["session"]["ended_by"]) == ("running", None)
    assert running["session"]["messages"] == {"client": 2, "engine": 2}
    async with site.http.stream("GET", "/admin/live") as answer:
        pictures = answer.aiter_lines()
        picture = json.loads((await anext(pictures)).removeprefix("data: "))
    [row] = picture["calls"]["running"]
    assert (row["id"], row["phase"], row["decode"]) == ("mine", "answering", "e0")
    assert picture["in_flight"] == 1
    assert site.lines() == []

    await client.say(CloseConnection(code=4001, reason=WORD))
    await engine.farewell()
    line = await site.line("mine")
    assert {name: line[name] for name in ("api", "model", "key", "protocol", "path", "status", "outcome")} == {
        "api": PATH, "model": None, "key": "of-k", "protocol": "plain", "path": "plain", "status": 101, "outcome": "ok",
    }  # fmt: skip
    assert line["tokens"] == {"prompt": 9, "generated": 4, "cached": 0}
    session = line["session"]
    assert (session["ended_by"], session["close_code"]) == ("closed", 4001)
    assert session["messages"] == {"client": 2, "engine": 2}
    assert session["bytes"] == {"client": 2 * len(WORD), "engine": sum(map(len, said))}
    assert 0 < session["seconds"] <= line["stages_ms"]["total"] / 1000
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", session["opened"])
    assert session["opened"] <= line["time"]
    [leg] = line["attempts"][0]["legs"]
    assert (leg["role"], leg["instance"], leg["outcome"]) == ("plain", "e0", "ok")
    assert WORD not in site.process.log.read_text()
    record = (await site.http.get("/admin/calls/mine")).json()
    assert record["session"] == session
    assert any("a session: open for" in told for told in story(record))
    engine.closed.set()


async def test_each_way_to_end_is_in_the_line(site: LoggedSite) -> None:
    client, engine = await site.opened("broken")
    engine.abort()
    assert json.loads(await client.message())["error"]["code"] == "engine_failed"
    line = await site.line("broken")
    assert _end_of(line) == (502, "engine_failed", "engine_failed")
    assert line["session"]["close_code"] == 1011
    assert line["attempts"][0]["legs"][0]["outcome"] == "engine_failed"

    client, engine = await site.opened("left")
    client.abort()
    await engine.farewell()
    # What uvicorn says of such a client is that it gave no code.
    ends = (499, "client_gone", "client_gone"), (101, "ok", "closed")
    assert _end_of(await site.line("left")) in ends
    engine.closed.set()

    client, engine = await site.opened("used-up", "poor")
    await says(engine, DONE)
    assert (await client.farewell()).code == 1008
    line = await site.line("used-up")
    assert (line["key"], line["tokens"]["prompt"]) == ("of-poor", 9)
    assert _end_of(line) == (429, "rate_limit_exceeded", "out_of_tokens")
    engine.closed.set()


async def test_what_is_refused_leaves_what_a_refused_call_leaves(site: LoggedSite) -> None:
    """No line where its key, its limit or the drain says no; one where it came as far as looking for an engine."""
    client, engine = await site.opened("first", "once")
    refused = {
        "strange": await refusal(await site.asked("strange", "wrong")),
        "late": await refusal(await site.asked("late", "once")),
        "unknown": await refusal(await site.asked("unknown", target=f"{PATH}?model=none")),
    }
    assert {name: status for name, (status, _) in refused.items()} == {
        "strange": 401, "late": 429, "unknown": 404,
    }  # fmt: skip
    line = await site.line("unknown")
    assert (line["status"], line["outcome"], line["model"]) == (404, "model_not_found", "none")
    assert (line["session"], line["attempts"]) == (None, [{"decision": None, "legs": []}])

    asked = {"model": "none", "messages": [{"role": "user", "content": "hi"}]}
    for call_id, key in (("strange-call", "wrong"), ("late-call", "once"), ("unknown-call", "k")):
        headers = {"authorization": f"Bearer {key}", "x-request-id": call_id}
        await site.http.post("/v1/chat/completions", json=asked, headers=headers)
    call = await site.line("unknown-call")
    assert (call["status"], call["outcome"]) == (line["status"], line["outcome"])

    assert (await site.http.post("/admin/drain")).status_code == 202
    assert (await refusal(await site.asked("too-late")))[0] == 503
    assert (await client.farewell()).code == 1001
    line = await site.line("first")
    assert _end_of(line) == (503, "draining", "draining")
    assert line["session"]["seconds"] >= GRACE_SECONDS
    assert [one["id"] for one in site.lines()] == ["unknown", "unknown-call", "first"]
    engine.closed.set()


async def test_the_last_line_is_written_before_the_process_ends(tmp_path: Path) -> None:
    async with _site(tmp_path, COMMANDS["fast"]) as site:
        client, engine = await site.opened("mine")
        site.process.signal(signal.SIGTERM)
        assert (await client.farewell()).code == 1001
        await asyncio.to_thread(site.process.wait_for_end)
        assert [one["outcome"] for one in site.lines()] == ["draining"]
        engine.closed.set()


def _end_of(line: Line) -> tuple[int, str, str]:
    return line["status"], line["outcome"], line["session"]["ended_by"]


def test_what_runs_is_kept_before_what_is_over() -> None:
    """A session outlasts thousands of calls."""
    kept, long = RecentCalls(), _named("long")
    kept.keep(long)
    for number in range(KEPT_RECORDS + 5):
        record = _named(f"call-{number}")
        kept.keep(record)
        record.end("ok", 200)
    assert kept.find("long") is not None
    assert kept.find("call-0") is None
    assert len(list(kept.newest())) == KEPT_RECORDS
    for number in range(KEPT_RECORDS + 5):
        kept.keep(_named(f"running-{number}"))
    assert len(list(kept.newest())) == KEPT_RECORDS


def _named(call_id: str) -> Record:
    return Record(msgspec.structs.replace(chat(), id=call_id))
