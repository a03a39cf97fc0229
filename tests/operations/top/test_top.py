"""`pdgate top` in front of a real gateway: once, as lines, and on a terminal."""

import asyncio
import fcntl
import json
import os
import pty
import signal
import struct
import sys
import termios
from collections.abc import Callable
from contextlib import aclosing
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pdgate.__main__ import app
from pdgate.operations.asking import BadAsk
from pdgate.operations.top.feed import Away, Picture, pictures
from pdgate.protocols.instance import Role
from tests.gateway.console.watching import TOKEN, gateway_with_console
from tests.support.fleet import PATIENCE_SECONDS, Engine, Gateway, gateway_of
from tests.support.raw_server import Peer, raw_server, reply


def url_of(gateway: Gateway) -> str:
    return f"http://127.0.0.1:{gateway.port}"


async def said_by(*args: str) -> tuple[int, str, str]:
    """Exit code, stdout, stderr."""
    runner = CliRunner(env={"COLUMNS": "120", "LINES": "40"})
    result = await asyncio.to_thread(runner.invoke, app, ["top", *args])
    return result.exit_code, result.stdout, result.stderr


@pytest.fixture
def token_file(tmp_path: Path) -> str:
    file = tmp_path / "known"
    file.write_text(TOKEN)
    return str(file)


async def test_once_it_prints_what_is_there_and_ends(tmp_path: Path, token_file: str) -> None:
    engines = Engine(Role.PREFILL), Engine(Role.DECODE)
    async with gateway_with_console(tmp_path, *engines) as gateway:
        await gateway.chat({"x-request-id": "mine"})
        known = (url_of(gateway), "--admin-token-file", token_file, "--once")
        code, said, _ = await said_by(*known)
        json_code, as_json, _ = await said_by(*known, "--json")

    assert (code, json_code) == (0, 0)
    for word in ("serving", "prefill-0", "decode-0", "mine", "ok"):
        assert word in said
    assert json.loads(as_json)["calls"]["ended"][0]["id"] == "mine"


async def test_what_was_said_wrong_is_a_sentence(tmp_path: Path, token_file: str) -> None:
    wrong = tmp_path / "wrong"
    wrong.write_text("a-token-of-somebody-else")
    async with (
        gateway_with_console(tmp_path, Engine(Role.PLAIN)) as gateway,
        gateway_of(Engine(Role.PLAIN)) as bare,
    ):
        for args, complaint in (
            ((url_of(gateway),), "for admins|to admins only: --admin-token-file"),
            ((url_of(gateway), "--admin-token-file", str(wrong)), "another admin token"),
            (
                (url_of(gateway), "--admin-token-file", "gone"),
                "--admin-token-file: cannot read gone",
            ),
            ((url_of(bare), "--admin-token-file", token_file), "shows no pictures: start it with"),
            (("gateway:8000", "--admin-token-file", token_file), "is not a URL like http://"),
            (("http://h:99999", "--admin-token-file", token_file), "is not a URL like http://"),
        ):
            code, said, complained = await said_by(*args, "--once")
            assert (code, said) == (2, ""), args
            assert any(each in complained for each in complaint.split("|")), complained
            assert complained.count("\n") == 1


async def test_a_gateway_that_is_not_there_is_exit_code_1(token_file: str) -> None:
    async with raw_server(_closes) as server:
        server.stop()
        asked = (server.url, "--admin-token-file", token_file, "--once")
        code, shown, said = await said_by(*asked)
        for_programs = json.loads((await said_by(*asked, "--json"))[1])

    assert (code, shown) == (1, "")
    assert "does not answer" in said
    assert "does not answer" in for_programs["away"]


async def _closes(peer: Peer) -> None:
    await peer.close()


async def test_a_gateway_that_goes_is_said_and_found_again() -> None:
    """Its connection breaks, it says nonsense, it is well again."""
    good = b'data: {"instances": [], "number": %d}\n\n'
    stream = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
    answers = [
        stream + good % 1 + b'data: {"insta',
        stream + b"data: nonsense\n\n",
        reply(b"", b"503 Service Unavailable"),
        stream + good % 2,
    ]

    async def script(peer: Peer) -> None:
        await peer.send(answers.pop(0))
        await peer.close()

    found: list[Picture | Away] = []
    async with (
        asyncio.timeout(PATIENCE_SECONDS),
        raw_server(script) as server,
        aclosing(pictures(server.url, TOKEN, retry_seconds=0)) as told,
    ):
        async for one in told:
            found.append(one)
            if not answers and not isinstance(one, Away):
                break

    whole = [one["number"] for one in found if not isinstance(one, Away)]
    away = [one.why for one in found if isinstance(one, Away)]
    assert whole == [1, 2]
    assert len(away) == 3
    assert "no picture" in away[1]
    assert "503" in away[2]


async def test_a_no_is_not_asked_again() -> None:
    async with raw_server(_says_no) as server, aclosing(pictures(server.url, TOKEN)) as told:
        with pytest.raises(BadAsk, match="another admin token"):
            await anext(told)
        assert len(server.requests) == 1


async def _says_no(peer: Peer) -> None:
    await peer.send(reply(b"{}", b"401 Unauthorized"))


@pytest.mark.slow
async def test_a_terminal_is_filled_follows_its_size_and_is_given_back(
    tmp_path: Path, token_file: str
) -> None:
    ours, theirs = pty.openpty()
    _size(theirs, 30, 100)
    env = {**os.environ, "TERM": "xterm-256color"}
    for said in ("COLUMNS", "LINES"):
        # They count more than the terminal does; readline sets them for what a process with it starts.
        env.pop(said, None)
    async with gateway_with_console(tmp_path, Engine(Role.PREFILL), Engine(Role.DECODE)) as gateway:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "pdgate", "top", url_of(gateway), "--admin-token-file", token_file,
            stdin=theirs, stdout=theirs, stderr=theirs, env=env,
        )  # fmt: skip
        os.close(theirs)
        try:
            screen = Screen(ours)
            await screen.shows(b"serving")
            await screen.shows(b"waits")
            _size(ours, 24, 60)
            process.send_signal(signal.SIGWINCH)
            # There is no room for that column any more; tables of before may still come.
            await screen.until(_has_narrow_table, "a table without that column")
            process.send_signal(signal.SIGINT)
            assert await asyncio.wait_for(process.wait(), PATIENCE_SECONDS) == 0
            # The screen of before is back, and the cursor.
            await screen.shows(b"\x1b[?1049l")
            await screen.shows(b"\x1b[?25h")
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
            os.close(ours)


def _size(terminal: int, rows: int, columns: int) -> None:
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


def _has_narrow_table(seen: bytes) -> bool:
    """Of those whose head is there whole."""
    heads = [row for row in seen.split(b"\n")[:-1] if b"to read" in row]
    return any(b"waits" not in head for head in heads)


class Screen:
    """What a program has written to its terminal."""

    def __init__(self, terminal: int) -> None:
        self.seen = bytearray()
        self._terminal = terminal

    async def shows(self, words: bytes) -> None:
        await self.until(lambda seen: words in seen, repr(words))

    async def until(self, question: Callable[[bytes], bool], what: str) -> None:
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                while not question(bytes(self.seen)):
                    self.seen += await asyncio.to_thread(os.read, self._terminal, 65536)
        except TimeoutError:
            raise AssertionError(f"waited for {what}, saw {bytes(self.seen)!r}") from None
