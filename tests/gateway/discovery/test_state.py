"""A gateway that starts while the directory is away goes by what it knew in its last life."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from pdgate.cluster import remembered
from pdgate.cluster.directory import Event, Listed, Lost
from pdgate.cluster.member import Member
from pdgate.cluster.memory import MemoryDirectory
from pdgate.gateway.config.sections import HealthSection
from pdgate.gateway.discovery import state as module
from pdgate.gateway.discovery.state import FILE_NAME, DiscoveryState
from pdgate.protocols.instance import Role
from tests.support.fleet import Engine, Gateway, gateway_of
from tests.support.raw_server import raw_server
from tests.support.waiting import until

NOW = 1_790_000_000.0


class Away(MemoryDirectory):
    """Does not answer, until a test says what it tells."""

    def __init__(self) -> None:
        super().__init__()
        self.tell: Callable[[Event], None] | None = None

    async def follow(self, tell: Callable[[Event], None]) -> None:
        tell(Lost("away"))
        self.tell = tell
        await asyncio.Event().wait()


@pytest.fixture
async def member() -> AsyncIterator[Member]:
    """Of a plain engine that runs."""
    async with AsyncExitStack() as servers:
        server = await servers.enter_async_context(raw_server(Engine(Role.PLAIN).serve))
        host, port = server.url.removeprefix("http://").split(":")
        yield Member(Role.PLAIN, host, int(port), epoch="one")


def gateway(directory: MemoryDirectory, folder: Path) -> Any:
    rarely = HealthSection(interval_seconds=600, timeout_seconds=10)
    return gateway_of(directory=directory, health=rarely, state_dir=str(folder))


async def directory_of(running: Gateway) -> dict[str, Any]:
    said: dict[str, Any] = (await running.http.get("/ready")).json()["directory"]
    return said


async def test_engines_of_the_last_life_serve_while_the_directory_is_away(
    member: Member, tmp_path: Path
) -> None:
    there, path = MemoryDirectory(), tmp_path / FILE_NAME
    there.put(member.key, member.value())
    async with gateway(there, tmp_path):
        await until(path.exists, "a file")

    away = Away()
    async with gateway(away, tmp_path) as running:
        said = await directory_of(running)
        assert (said["state"], said["instances"]) == ("remembered", 1)
        assert 0 <= said["age_seconds"] < 60
        assert (await running.chat()).status_code == 200

        assert away.tell is not None
        away.tell(Listed({member.key: member}))
        assert await directory_of(running) == {"state": "current", "instances": 1}


async def test_who_is_remembered_and_gone_gets_no_calls(tmp_path: Path) -> None:
    """An address proves nothing: it is looked at before it is used."""
    gone = Member(Role.PLAIN, "127.0.0.1", 1)
    remembered.write(tmp_path / FILE_NAME, {gone.key: gone}, time.time())

    async with gateway(Away(), tmp_path) as running:
        assert (await directory_of(running))["state"] == "remembered"
        assert (await running.chat()).status_code == 503


async def test_a_file_that_cannot_be_used_is_logged_and_stops_nobody(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / FILE_NAME).write_text("no JSON")

    async with gateway(Away(), tmp_path) as running:
        assert (await directory_of(running))["state"] == "waiting"
    assert "fleet.json is no JSON" in caplog.text


async def test_what_is_not_known_to_be_true_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the list would seem younger than it is."""
    monkeypatch.setattr(module, "LEAST_SECONDS", 0.0)
    state, asked = DiscoveryState(tmp_path, lambda: NOW), asyncio.Queue[None]()
    lists: Iterator[dict[str, Member] | None] = iter([None, {}])

    def current() -> dict[str, Member] | None:
        asked.put_nowait(None)
        return next(lists)

    keeping = asyncio.create_task(state.keep(current))
    state.changed()
    await asked.get()
    assert not (tmp_path / FILE_NAME).exists()
    state.changed()
    await asked.get()
    await until((tmp_path / FILE_NAME).exists, "a file")
    keeping.cancel()
    await asyncio.wait([keeping])

    assert json.loads((tmp_path / FILE_NAME).read_text())["at"] == NOW


async def test_a_folder_that_cannot_be_written_is_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "LEAST_SECONDS", 0.0)
    (tmp_path / "file").touch()
    state, written = DiscoveryState(tmp_path / "file"), asyncio.Semaphore(0)

    def current() -> dict[str, Member]:
        written.release()
        return {}

    keeping = asyncio.create_task(state.keep(current))
    for _ in range(3):
        state.changed()
        await written.acquire()
    keeping.cancel()
    await asyncio.wait([keeping])

    assert caplog.text.count("are not remembered for the next start") == 1
