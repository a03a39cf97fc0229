"""Workers ask each other; who is dead is forgotten, and who is silent is counted."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from pdgate.gateway.console import siblings
from pdgate.gateway.console.siblings import Siblings


def _sockets(folder: Path) -> list[Path]:
    return list(folder.iterdir())


@asynccontextmanager
async def worker(folder: Path, answer: bytes) -> AsyncIterator[Siblings]:
    """Answers any question with what it was asked and `answer`."""
    one = Siblings(folder, lambda question: answer and question + b" " + answer)
    running = asyncio.create_task(one.run())
    await one.listens.wait()
    try:
        yield one
    finally:
        running.cancel()
        await asyncio.wait((running,))


async def test_all_others_are_asked_and_not_oneself(tmp_path: Path) -> None:
    async with (
        worker(tmp_path, b"a") as one,
        worker(tmp_path, b"b"),
        worker(tmp_path, b"c"),
        worker(tmp_path, b""),
    ):
        assert sorted(await one.ask(b"who")) == [b"who b", b"who c"]
        assert one.silent == 0
    assert _sockets(tmp_path) == []


async def test_a_long_answer_comes_whole(tmp_path: Path) -> None:
    async with worker(tmp_path, b"a") as one, worker(tmp_path, b"b" * 1_000_000):
        assert [len(answer) for answer in await one.ask(b"")] == [1_000_001]


async def test_a_socket_of_who_was_killed_is_removed(tmp_path: Path) -> None:
    left = tmp_path / "1-dead.ask"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(left))
    async with worker(tmp_path, b"a") as one:
        assert await one.ask(b"who") == []

    assert one.silent == 0
    assert not left.exists()


async def test_who_hangs_is_counted_and_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(siblings, "ANSWER_SECONDS", 0.05)
    with socket.socket(socket.AF_UNIX) as hung:
        hung.bind(str(tmp_path / "1-hung.ask"))
        hung.listen()
        async with worker(tmp_path, b"a") as one:
            assert await one.ask(b"who") == []
            assert one.silent == 1


async def test_half_an_answer_is_none(tmp_path: Path) -> None:
    """Of a worker that is killed while it gives it; it ended the picture of all, or was shown as it was."""

    async def half(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.write(b'{"in_flight": 1')
        writer.close()

    server = await asyncio.start_unix_server(half, str(tmp_path / "1-killed.ask"))
    async with server, worker(tmp_path, b"a") as one:
        assert await one.ask(b"part") == []
        assert one.silent == 1


async def test_without_room_for_a_socket_a_worker_is_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The path of a Unix socket has 107 bytes."""
    folder = tmp_path / ("x" * 120)
    folder.mkdir()

    alone = asyncio.create_task(Siblings(folder, lambda _: b"").run())
    await asyncio.sleep(0)

    assert "each worker alone" in caplog.text
    alone.cancel()
