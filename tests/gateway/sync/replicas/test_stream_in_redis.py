"""Prompts in a real Redis: each replica reads what the others have told, in its own time."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from pdgate.cluster.directory import StoreAway
from pdgate.gateway.sync.replicas import in_redis
from pdgate.gateway.sync.replicas.in_redis import PROMPTS_KEY, RedisStream
from tests.gateway.sync.replicas.test_far_prompts import Replica, prompt
from tests.support import waiting
from tests.support.redis import RedisServer, redis_server
from tests.support.waiting import until

PATIENCE_SECONDS = waiting.PATIENCE_SECONDS

NewStream = Callable[[], RedisStream]


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RedisServer]:
    with redis_server(tmp_path) as server:
        yield server


@pytest.fixture
async def new_stream(
    redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[NewStream]:
    # A busy machine is no Redis that is away.
    monkeypatch.setattr(in_redis, "ANSWER_SECONDS", PATIENCE_SECONDS)
    async with AsyncExitStack() as streams:

        def made() -> RedisStream:
            stream = RedisStream(redis.url)
            streams.push_async_callback(stream.close)
            return stream

        yield made


async def test_each_reads_what_was_told_since_it_last_did(new_stream: NewStream) -> None:
    one, other = new_stream(), new_stream()

    assert await one.exchange(None) == []
    assert await one.exchange(b"a") == [b"a"]
    assert await other.exchange(b"b") == [b"a", b"b"]
    assert await one.exchange(None) == [b"b"]
    assert await other.exchange(None) == []


async def test_the_stream_forgets_its_beginning(
    redis: RedisServer, new_stream: NewStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(in_redis, "MOST_BATCHES", 100)
    one = new_stream()
    for number in range(500):
        await one.exchange(str(number).encode())
    with redis.client() as client:
        assert 100 <= int(client.xlen(PROMPTS_KEY)) <= 200

    late = new_stream()
    assert b"0" not in await late.exchange(None)


async def test_a_redis_that_comes_back_empty_is_told_what_comes_then(
    redis: RedisServer, new_stream: NewStream
) -> None:
    one, other = new_stream(), new_stream()
    await one.exchange(b"a")
    await other.exchange(None)
    await asyncio.to_thread(redis.stop)
    with pytest.raises(StoreAway, match="Redis"):
        await one.exchange(b"b")
    redis.forget()
    await asyncio.to_thread(redis.start)

    await one.exchange(b"c")
    assert await other.exchange(None) == [b"c"]


async def test_what_is_no_batch_of_ours_is_refused(
    redis: RedisServer, new_stream: NewStream
) -> None:
    with redis.client() as client:
        client.xadd(PROMPTS_KEY, {"what": "ever"})

    assert await new_stream().exchange(None) == [b""]


async def test_what_one_sends_the_other_knows_soon(new_stream: NewStream) -> None:
    one, other = Replica(new_stream(), "one"), Replica(new_stream(), "other")
    async with asyncio.timeout(PATIENCE_SECONDS), asyncio.TaskGroup() as group:
        running = [group.create_task(each.prompts.run()) for each in (one, other)]
        one.index.routed(prompt(1, 2, 3), "e1")
        await until(lambda: other.knows(1, 2, 3) == {"e1": 3}, "what the other sent")
        for task in running:
            task.cancel()


async def test_what_strangers_write_is_read_within_bounds(
    redis: RedisServer, new_stream: NewStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(in_redis, "MOST_BYTES", 1 << 20)
    large = b"x" * (300 << 10)
    with redis.client() as client:
        client.xadd(PROMPTS_KEY, {"data": b"x" * (2 << 20)})
        for _ in range(5):
            client.xadd(PROMPTS_KEY, {"data": large, "more": b"x" * (1 << 20)})
    stream = new_stream()

    assert await stream.exchange(None) == [b"", large, large, large]
    assert await stream.exchange(b"ours") == [large, large, b"ours"]
