"""Processes tell each other what is held, and which of them has taken it, in a folder and in Redis alike."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from pdgate.gateway.control import board as boards
from pdgate.gateway.control.board import ControlBoard, ControlBusy, FolderBoard
from pdgate.gateway.control.following import ControlWord, Following, read_word
from pdgate.gateway.control.holds import Holds
from pdgate.gateway.control.redis_board import RedisBoard
from pdgate.gateway.control.state import HeldState
from pdgate.gateway.probe import Prober
from pdgate.protocols.instance import Instance, Role
from pdgate.scheduling.endpoints import Endpoints
from pdgate.scheduling.prefix import PrefixIndex
from tests.support.redis import redis_server

Make = Callable[[], ControlBoard]


@pytest.fixture(params=["folder", "redis"])
async def make(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Make]:
    """Makes the board of another process."""
    made: list[ControlBoard] = []

    def keep(board: ControlBoard) -> ControlBoard:
        made.append(board)
        return board

    if request.param == "folder":
        yield lambda: keep(FolderBoard(tmp_path))
    else:
        with redis_server(tmp_path) as server:
            url = server.url
            yield lambda: keep(RedisBoard(url))
    for board in made:
        await board.leave()
        board.close()


def following(board: ControlBoard) -> Following:
    endpoints = Endpoints([Instance("e", "http://10.0.0.1", Role.PLAIN, "plain", model="m")])
    holds = Holds(endpoints.meant, wait_seconds=60, most_waiting=10)
    prober = Prober(endpoints, 60, 60, 60)
    return Following(board, holds, endpoints, PrefixIndex(), prober, endpoints.drain)


async def test_what_one_process_holds_the_others_hold_and_say_so(make: Make) -> None:
    one, other = make(), following(make())
    await other.look()
    assert [read_word(word) for word in await one.words()] == [ControlWord(0, {})]

    held = HeldState().hold(["m"], "paused").updated((), ("e",))
    await one.pin(held.model_dump_json().encode())
    assert not read_word((await one.words())[0]).has(held.version, ())
    await other.look()

    assert read_word((await one.words())[0]).has(held.version, ["m"])
    assert other.state == held
    assert [endpoint.state for endpoint in other.endpoints] == ["drained"]


async def test_one_process_at_a_time_changes_what_is_held(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = make(), make()
    monkeypatch.setattr(boards, "TURN_SECONDS", 0.0)
    async with one.turn():
        with pytest.raises(ControlBusy):
            async with other.turn():
                pass
    async with other.turn():
        pass


async def test_a_process_that_has_said_nothing_yet_is_waited_for(tmp_path: Path) -> None:
    one, new = FolderBoard(tmp_path), FolderBoard(tmp_path)
    try:
        assert [read_word(word).has(0, ()) for word in await one.words()] == [False]
        new.close()
        # It has ended: nobody waits for it.
        assert await one.words() == []
    finally:
        one.close()


async def test_what_is_older_than_what_is_known_is_not_taken(tmp_path: Path) -> None:
    board = FolderBoard(tmp_path)
    try:
        process = following(board)
        newer = HeldState().hold(["m"], "paused").hold(["m"], "updating")
        async with asyncio.TaskGroup() as group:
            group.create_task(process.take(newer))
            group.create_task(process.take(HeldState().hold(["m"], "paused")))
        assert process.state == newer
        await board.pin(b"nonsense")
        assert await process.look() == newer
    finally:
        board.close()
