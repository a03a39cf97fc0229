"""What one process is told, all that share a board put in force."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from pdgate.gateway.admin.board import Board, BoardAway, FileBoard
from pdgate.gateway.admin.dial import Dial
from pdgate.gateway.admin.redis_board import RedisBoard
from pdgate.gateway.config.sections import Disaggregation
from tests.support.redis import RedisServer, redis_server

LOOK_SECONDS = 0.01
PATIENCE_SECONDS = 20.0
CONFIGURED, TOLD = Disaggregation(), Disaggregation(rule="never")

NewBoard = Callable[[], Board]


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RedisServer]:
    with redis_server(tmp_path) as server:
        yield server


@pytest.fixture(params=["file", "redis"])
def new_board(request: pytest.FixtureRequest, tmp_path: Path) -> NewBoard:
    """Another process's view of the same board, each time."""
    if request.param == "file":
        return lambda: FileBoard(tmp_path / "pinned")
    url = request.getfixturevalue("redis").url
    return lambda: RedisBoard(url, "pdgate:test")


class Process:
    """A dial, and what came of it."""

    def __init__(self, board: Board | None) -> None:
        self.applied: asyncio.Queue[Disaggregation] = asyncio.Queue()
        self.dial: Dial[Disaggregation] = Dial(
            CONFIGURED, self.applied.put_nowait, board, LOOK_SECONDS
        )

    async def hears(self) -> Disaggregation:
        async with asyncio.timeout(PATIENCE_SECONDS):
            return await self.applied.get()

    @asynccontextmanager
    async def following(self) -> AsyncIterator["Process"]:
        task = asyncio.create_task(self.dial.follow())
        try:
            yield self
        finally:
            task.cancel()
            await asyncio.wait([task])


async def test_what_one_is_told_all_do(new_board: NewBoard) -> None:
    async with Process(new_board()).following() as one, Process(new_board()).following() as other:
        await one.dial.put(TOLD)

        assert one.dial.section == TOLD
        assert await one.hears() == await other.hears() == TOLD
        assert other.dial.section == TOLD


async def test_a_change_begins_with_what_another_process_has_just_said(new_board: NewBoard) -> None:
    """Nobody has looked at the board in between."""
    boards = new_board(), new_board()
    one, other = map(Process, boards)
    await one.dial.change(lambda before: before.model_copy(update={"rule": "never"}))
    await other.dial.change(lambda before: before.model_copy(update={"uncached_tokens": 7}))

    assert other.dial.section == Disaggregation(rule="never", uncached_tokens=7)
    for board in boards:
        await board.close()


async def test_nonsense_can_be_changed_into_sense(new_board: NewBoard) -> None:
    board = new_board()
    await board.pin(b"{")
    process = Process(board)

    await process.dial.change(lambda _: TOLD)

    assert process.dial.section == TOLD
    await board.close()


async def test_who_starts_later_does_it_too(new_board: NewBoard) -> None:
    async with Process(new_board()).following() as one:
        await one.dial.put(TOLD)

    async with Process(new_board()).following() as later:
        assert await later.hears() == TOLD


@pytest.mark.parametrize("nonsense", [b"", b"{", b"[]", b'{"rule": "sometimes"}', b"\xff"])
async def test_what_cannot_be_read_changes_nothing_and_is_said_once(
    new_board: NewBoard, nonsense: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    board = new_board()
    await board.pin(nonsense)
    async with Process(new_board()).following() as process:
        await board.pin(TOLD.model_dump_json().encode())
        assert await process.hears() == TOLD
    await board.close()

    warnings = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) <= 1


async def test_it_ends_even_if_a_board_swallows_the_wish() -> None:
    """redis-py does, when that comes while it connects."""
    asked = asyncio.Event()

    class Swallowing(Board):
        async def read(self) -> bytes | None:
            asked.set()
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(PATIENCE_SECONDS)
            return None

        async def pin(self, value: bytes) -> None:
            raise NotImplementedError

    following = asyncio.create_task(Process(Swallowing()).dial.follow())
    await asked.wait()
    following.cancel()

    async with asyncio.timeout(PATIENCE_SECONDS):
        await asyncio.wait([following])


async def test_without_a_board_a_process_is_on_its_own() -> None:
    process = Process(None)

    await process.dial.follow()
    await process.dial.put(TOLD)

    assert await process.hears() == TOLD
    assert not process.dial.shared


async def test_redis_may_be_away_and_what_was_said_stays_in_force(redis: RedisServer) -> None:
    board = RedisBoard(redis.url, "k")
    async with Process(RedisBoard(redis.url, "k")).following() as process:
        await process.dial.put(TOLD)
        assert await process.hears() == TOLD
        redis.stop()

        with pytest.raises(BoardAway):
            await process.dial.put(CONFIGURED)
        assert process.dial.section == TOLD

        redis.start()
        await board.pin(Disaggregation(rule="auto").model_dump_json().encode())
        assert (await process.hears()).rule == "auto"
    await board.close()
