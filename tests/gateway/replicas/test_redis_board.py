"""Entries in a real Redis: who tells is heard, for as long as its lease goes on."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from pdgate.gateway.replicas import redis_board
from pdgate.gateway.replicas.board import BoardAway
from pdgate.gateway.replicas.redis_board import KEY, RedisBoard
from tests.support.redis import RedisServer, redis_server

LONG, BRIEF = 60.0, 0.05
"""Leases, in seconds."""
PATIENCE_SECONDS = 20.0

NewBoard = Callable[[], RedisBoard]


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RedisServer]:
    with redis_server(tmp_path) as server:
        yield server


@pytest.fixture
async def new_board(redis: RedisServer, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[NewBoard]:
    # A busy machine is no Redis that is away.
    monkeypatch.setattr(redis_board, "ANSWER_SECONDS", PATIENCE_SECONDS)
    async with AsyncExitStack() as boards:

        def made() -> RedisBoard:
            board = RedisBoard(redis.url, LONG)
            boards.push_async_callback(board.close)
            return board

        yield made


async def test_all_hear_what_the_others_told_last(new_board: NewBoard) -> None:
    one, two, three = new_board(), new_board(), new_board()
    await one.exchange(b"first")
    await one.exchange(b"one")
    await two.exchange(b"two")
    await two.exchange(None)

    assert sorted((await three.exchange(b"three")).values()) == [b"one", b"two"]
    assert sorted((await one.exchange(None)).values()) == [b"three", b"two"]


async def test_who_leaves_or_whose_lease_ends_is_heard_no_more(
    new_board: NewBoard, redis: RedisServer
) -> None:
    left, died, stays = new_board(), new_board(), new_board()
    for board in (left, died, stays):
        await board.exchange(b"told")
    assert len(await stays.exchange(None)) == 2

    await left.close()
    with redis.client() as client:
        (key,) = set(client.keys(f"{KEY}:*")) - {f"{KEY}:{stays._process}"}
        # What the lease does when it ends.
        client.delete(key)
        assert await stays.exchange(None) == {}
        assert client.smembers(KEY) == {stays._process}, "nothing is left of them"


async def test_leases_end_by_themselves(redis: RedisServer, new_board: NewBoard) -> None:
    brief = RedisBoard(redis.url, BRIEF)
    try:
        await brief.exchange(b"told")
        with redis.client() as client:
            assert client.pttl(f"{KEY}:{brief._process}") <= BRIEF * 1000
    finally:
        await brief._redis.aclose()

    board = new_board()
    async with asyncio.timeout(PATIENCE_SECONDS):
        while await board.exchange(None):
            pass


@pytest.mark.parametrize("lease_ms", [None, 10 * int(LONG) * 1000])
async def test_a_lease_that_does_not_end_is_none(
    new_board: NewBoard, redis: RedisServer, lease_ms: int | None
) -> None:
    with redis.client() as client:
        client.sadd(KEY, "odd")
        client.set(f"{KEY}:odd", "told", px=lease_ms)

    assert await new_board().exchange(None) == {"odd": b""}


async def test_a_redis_that_comes_back_is_told_anew(
    new_board: NewBoard, redis: RedisServer
) -> None:
    """Also the script, which it has forgotten."""
    one, two = new_board(), new_board()
    await one.exchange(b"told")
    redis.stop()
    with pytest.raises(BoardAway, match="Redis"):
        await one.exchange(None)

    redis.forget()
    redis.start()
    assert await two.exchange(None) == {}
    await one.exchange(b"again")
    assert list((await two.exchange(None)).values()) == [b"again"]


async def test_a_redis_that_hangs_is_away(
    new_board: NewBoard, redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_board, "ANSWER_SECONDS", 0.05)
    board = new_board()
    redis.freeze()
    try:
        with pytest.raises(BoardAway):
            await board.exchange(None)
    finally:
        redis.thaw()
