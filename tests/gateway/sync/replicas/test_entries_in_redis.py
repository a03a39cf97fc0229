"""Entries in a real Redis: who tells is heard, for as long as its lease goes on."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from pdgate.cluster.directory import StoreAway
from pdgate.gateway.sync.replicas import in_redis
from pdgate.gateway.sync.replicas.in_redis import LOAD_KEY, RedisLoadEntries
from tests.support import waiting
from tests.support.redis import RedisServer, redis_server

LONG, BRIEF = 60.0, 0.05
"""Leases, in seconds."""
PATIENCE_SECONDS = waiting.PATIENCE_SECONDS

NewEntries = Callable[[], RedisLoadEntries]


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RedisServer]:
    with redis_server(tmp_path) as server:
        yield server


@pytest.fixture
async def new_entries(
    redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[NewEntries]:
    # A busy machine is no Redis that is away.
    monkeypatch.setattr(in_redis, "ANSWER_SECONDS", PATIENCE_SECONDS)
    async with AsyncExitStack() as several:

        def made() -> RedisLoadEntries:
            entries = RedisLoadEntries(redis.url, LONG)
            several.push_async_callback(entries.close)
            return entries

        yield made


async def test_all_hear_what_the_others_told_last(new_entries: NewEntries) -> None:
    one, two, three = new_entries(), new_entries(), new_entries()
    await one.exchange(b"first")
    await one.exchange(b"one")
    await two.exchange(b"two")
    await two.exchange(None)

    assert sorted((await three.exchange(b"three")).values()) == [b"one", b"two"]
    assert sorted((await one.exchange(None)).values()) == [b"three", b"two"]


async def test_who_leaves_or_whose_lease_ends_is_heard_no_more(
    new_entries: NewEntries, redis: RedisServer
) -> None:
    left, died, stays = new_entries(), new_entries(), new_entries()
    for one in (left, died, stays):
        await one.exchange(b"told")
    assert len(await stays.exchange(None)) == 2

    await left.close()
    with redis.client() as client:
        (key,) = set(client.keys(f"{LOAD_KEY}:*")) - {f"{LOAD_KEY}:{stays._process}"}
        # What the lease does when it ends.
        client.delete(key)
        assert await stays.exchange(None) == {}
        assert client.smembers(LOAD_KEY) == {stays._process}, "nothing is left of them"


async def test_leases_end_by_themselves(redis: RedisServer, new_entries: NewEntries) -> None:
    brief = RedisLoadEntries(redis.url, BRIEF)
    try:
        await brief.exchange(b"told")
        with redis.client() as client:
            assert client.pttl(f"{LOAD_KEY}:{brief._process}") <= BRIEF * 1000
    finally:
        await brief._redis.aclose()

    entries = new_entries()
    async with asyncio.timeout(PATIENCE_SECONDS):
        while await entries.exchange(None):
            pass


@pytest.mark.parametrize("lease_ms", [None, 10 * int(LONG) * 1000])
async def test_a_lease_that_does_not_end_is_none(
    new_entries: NewEntries, redis: RedisServer, lease_ms: int | None
) -> None:
    with redis.client() as client:
        client.sadd(LOAD_KEY, "odd")
        client.set(f"{LOAD_KEY}:odd", "told", px=lease_ms)

    assert await new_entries().exchange(None) == {"odd": b""}


async def test_a_redis_that_comes_back_is_told_anew(
    new_entries: NewEntries, redis: RedisServer
) -> None:
    """Also the script, which it has forgotten."""
    one, two = new_entries(), new_entries()
    await one.exchange(b"told")
    redis.stop()
    with pytest.raises(StoreAway, match="Redis"):
        await one.exchange(None)

    redis.forget()
    redis.start()
    assert await two.exchange(None) == {}
    await one.exchange(b"again")
    assert list((await two.exchange(None)).values()) == [b"again"]


async def test_a_redis_that_hangs_is_away(
    new_entries: NewEntries, redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(in_redis, "ANSWER_SECONDS", 0.05)
    entries = new_entries()
    redis.freeze()
    try:
        with pytest.raises(StoreAway):
            await entries.exchange(None)
    finally:
        redis.thaw()


async def test_what_strangers_write_is_read_within_bounds(
    new_entries: NewEntries, redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many, large, and of another kind; and a gateway hears of the others all the same."""
    monkeypatch.setattr(in_redis, "MOST_BYTES", 1 << 20)
    entries, other = new_entries(), new_entries()
    await other.exchange(b"told")
    large, huge = b"x" * (200 << 10), b"x" * (8 << 20)
    with redis.client() as client:
        for number in range(50):
            client.set(f"{LOAD_KEY}:large{number}", large, px=int(LONG * 1000))
        client.set(f"{LOAD_KEY}:huge", huge, px=int(LONG * 1000))
        client.hset(f"{LOAD_KEY}:hash", "a", "b")
        client.pexpire(f"{LOAD_KEY}:hash", int(LONG * 1000))
        names = [f"large{number}" for number in range(50)]
        client.sadd(LOAD_KEY, "huge", "hash", "n" * 1000, *names)

    found = await entries.exchange(None)

    assert found[other._process] == b"told"
    assert (found["huge"], found["hash"]) == (b"", b"")
    assert sum(map(len, found.values())) <= 1 << 20
    assert all(len(name) <= 64 for name in found)

    with redis.client() as client:
        client.sadd(LOAD_KEY, *[f"f{number}" for number in range(3000)])
        for number in range(3000):
            client.set(f"{LOAD_KEY}:f{number}", b"", px=int(LONG * 1000))
    assert len(await entries.exchange(None)) <= in_redis.MOST_PROCESSES
