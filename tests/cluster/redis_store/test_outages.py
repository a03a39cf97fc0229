"""What an outage of Redis does to those who announce and those who follow: nothing is lost."""

import asyncio
import logging
from dataclasses import replace
from typing import Any

import pytest

from pdgate.cluster.directory import Joined, Left, Listed, Lost, Refused, Resumed, StoreAway
from pdgate.cluster.redis_store import scripts
from pdgate.cluster.redis_store.access import Script
from pdgate.cluster.redis_store.directory import RedisDirectory
from pdgate.protocols.instance import Role
from tests.cluster.in_redis import InRedis
from tests.cluster.watching import PATIENCE_SECONDS, D, P, following
from tests.support.redis import RedisServer

pytestmark = pytest.mark.slow

LEASE_SECONDS = 3.0
LOOK_SECONDS = 0.1
NOW = replace(P, role=Role.DECODE)


@pytest.fixture
def server(own_redis: RedisServer) -> RedisServer:
    return own_redis


def directory(server: RedisServer) -> RedisDirectory:
    return RedisDirectory(url=server.url, lease_seconds=LEASE_SECONDS, look_seconds=LOOK_SECONDS)


async def test_after_an_outage_what_has_changed_is_told(server: RedisServer) -> None:
    store = InRedis(server)
    store.put(P.key, P.value())
    async with following(directory(server)) as told:
        assert await told.next() == Listed({P.key: P})
        await asyncio.to_thread(server.stop)
        await told.first(Lost)
        assert told.nothing_more()
        await asyncio.to_thread(server.start)
        store.put(D.key, D.value())

        assert await told.next() == Resumed()
        assert await told.next() == Joined(D.key, D)


async def test_a_store_that_does_not_answer_is_lost_though_its_connections_stay(
    server: RedisServer,
) -> None:
    async with following(directory(server)) as told:
        await told.next()
        server.freeze()
        await told.first(Lost)
        assert told.nothing_more()
        server.thaw()

        assert await told.next() == Resumed()


async def test_a_store_that_starts_empty_is_read_anew(server: RedisServer) -> None:
    """It counts its revisions from the beginning again."""
    store = InRedis(server)
    store.put(P.key, P.value())
    async with following(directory(server)) as told:
        await told.next()
        await asyncio.to_thread(server.stop)
        await told.first(Lost)
        server.forget()
        await asyncio.to_thread(server.start)
        store.put(D.key, D.value())

        listed = await told.first(Listed)
        assert listed == Listed({D.key: D}) or await told.next() == Joined(D.key, D)


async def test_a_store_that_is_emptied_under_us_is_a_loss(server: RedisServer) -> None:
    """Or all engines were gone at once, which are about to announce themselves again."""
    store = InRedis(server)
    store.put(D.key, D.value())
    async with following(directory(server)) as told:
        await told.next()
        with server.client() as client:
            client.flushall()

        assert isinstance(await told.next(), Lost)
        assert await told.next() == Listed({})


async def test_an_engine_is_listed_again_in_a_store_that_has_forgotten_it(
    server: RedisServer,
) -> None:
    async with directory(server).announce(P), following(directory(server)) as told:
        listed = await told.first(Listed)
        assert listed == Listed({P.key: P}) or await told.next() == Joined(P.key, P)
        with server.client() as client:
            client.flushall()

        assert await told.first(Joined) == Joined(P.key, P)


async def test_an_engine_that_dies_is_gone_when_its_lease_ends(server: RedisServer) -> None:
    """Nobody says goodbye for it."""
    store = InRedis(server)
    async with following(directory(server)) as told:
        await told.next()
        store.put(P.key, P.value(), lease_ms=2000)

        assert await told.next() == Joined(P.key, P)
        assert await told.next() == Left(P.key)


async def test_a_living_engine_stays_longer_than_its_lease(server: RedisServer) -> None:
    """Somebody else's lease of twice the length is the clock."""
    store = InRedis(server)
    async with following(directory(server)) as told:
        await told.next()
        async with directory(server).announce(P):
            await told.until(Joined(P.key, P))
            store.put(D.key, D.value(), lease_ms=round(2000 * LEASE_SECONDS))
            assert await told.next() == Joined(D.key, D)

            assert await told.next() == Left(D.key)
            assert store.keys() == [P.key]


async def test_who_came_later_at_the_same_address_is_not_overwritten(server: RedisServer) -> None:
    """Neither while the first one lives, nor by its goodbye."""
    store, again = InRedis(server), replace(P, epoch="two")
    async with following(directory(server)) as told:
        await told.next()
        async with directory(server).announce(P):
            await told.until(Joined(P.key, P))
            store.put(P.key, again.value())
            store.put(D.key, D.value(), lease_ms=round(1000 * LEASE_SECONDS))
            assert [await told.next() for _ in range(2)] == [
                Joined(P.key, again),
                Joined(D.key, D),
            ]
            # The first one has had time to renew.
            assert await told.next() == Left(D.key)

        assert store.keys() == [P.key]
        assert told.nothing_more()


async def test_a_lease_that_ends_in_a_far_future_is_refused(server: RedisServer) -> None:
    store = InRedis(server)
    store.put(P.key, P.value(), lease_ms=1 << 50)
    store.put(D.key, D.value())

    async with following(directory(server)) as told:
        listed = await told.first(Listed)

    assert dict(listed.members) == {D.key: D}
    assert "its lease ends in more than 3600 s" in listed.refused[P.key]


async def test_an_entry_without_a_lease_is_refused_until_it_has_one(server: RedisServer) -> None:
    """Somebody wrote it by hand, and would never take it away."""
    store = InRedis(server)
    with server.client() as client:
        client.hset(scripts.VALUES, P.key, P.value().decode())
    async with following(directory(server)) as told:
        assert await told.next() == Listed({}, refused={P.key: "it has no lease"})
        store.put(P.key, P.value())

        assert await told.next() == Joined(P.key, P)


async def test_bytes_that_are_no_text_are_refused(server: RedisServer) -> None:
    store = InRedis(server)
    store.put(P.key, b"\xff\xfe")
    async with following(directory(server)) as told:
        assert await told.next() == Listed({}, refused={P.key: "its value is no JSON"})
        store.put(D.key, D.value())
        assert await told.next() == Joined(D.key, D)

        with server.client() as client:
            client.set(scripts.STATE, "of another type")
        assert isinstance(await told.next(), Lost)


async def test_an_entry_of_which_nobody_was_told_is_found_by_looking(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A word on the channel may be missed."""
    monkeypatch.setattr("pdgate.cluster.redis_store.follow.FULL_SECONDS", 0.2)
    async with following(directory(server)) as told:
        await told.next()
        with server.client() as client:
            client.zadd(scripts.LEASES, {P.key: client.time()[0] * 1000 + 60_000})
            client.hset(scripts.VALUES, P.key, P.value().decode())

        assert await told.first(Joined) == Joined(P.key, P)


async def test_who_comes_before_the_store_is_listed_when_it_starts(server: RedisServer) -> None:
    await asyncio.to_thread(server.stop)
    async with directory(server).announce(P), following(directory(server)) as told:
        assert isinstance(await told.next(), Lost)
        await asyncio.to_thread(server.start)

        listed = await told.first(Listed)
        assert listed == Listed({P.key: P}) or await told.next() == Joined(P.key, P)


async def test_leaving_while_the_store_is_away_takes_no_longer_than_seconds(
    server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        async with directory(server).announce(P) as listing:
            # Returns when it is listed.
            await listing.change(P)
            await asyncio.to_thread(server.stop)

    assert "ends by itself" in caplog.text


async def test_a_change_whose_answer_was_lost_leaves_nothing_behind(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has changed back before anybody could find out whether it had arrived."""
    run, arrived = Script.__call__, asyncio.Event()

    async def lost(script: Script, *words: Any) -> Any:
        await run(script, *words)
        arrived.set()
        raise StoreAway("the answer was lost")

    async with directory(server).announce(P) as listing, asyncio.timeout(PATIENCE_SECONDS):
        await listing.change(P)
        monkeypatch.setattr(Script, "__call__", lost)
        changing = asyncio.create_task(listing.change(NOW))
        await arrived.wait()
        monkeypatch.setattr(Script, "__call__", run)

        await listing.change(P)

        assert InRedis(server).keys() == [P.key]
        await changing


async def test_a_newer_version_is_refused_and_takes_its_place(server: RedisServer) -> None:
    """An engine that was upgraded beyond us is no longer what it was."""
    store = InRedis(server)
    store.put(P.key, P.value())
    async with following(directory(server)) as told:
        await told.next()
        store.put(P.key, b'{"version": 9}')

        assert isinstance(await told.next(), Refused)
