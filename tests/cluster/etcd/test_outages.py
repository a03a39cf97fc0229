"""What an outage of etcd does to those who announce and those who follow: nothing is lost."""

import asyncio
import itertools
import logging
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from pdgate.cluster.directory import Joined, Left, Listed, Lost, Resumed
from pdgate.cluster.etcd import directory as etcd_directory
from pdgate.cluster.etcd import wire
from pdgate.cluster.etcd.access import EtcdAccess
from pdgate.cluster.etcd.directory import Etcd
from pdgate.cluster.etcd.http import EtcdHttp
from pdgate.cluster.keeping import RENEWALS
from pdgate.protocols.instance import Role
from tests.cluster.watching import PATIENCE_SECONDS, D, P, following
from tests.support.etcd import EtcdServer, etcd_server

pytestmark = pytest.mark.slow

LEASE_SECONDS = 6
"""Long enough for a core, or etcd's disk, that stands still for some seconds: it is renewed every two."""
BEAT_SECONDS = 0.3


@pytest.fixture
def etcd(own_etcd: EtcdServer) -> EtcdServer:
    return own_etcd


def directory(*servers: EtcdServer) -> Etcd:
    urls = [url for server in servers for url in server.endpoints]
    return Etcd(urls, lease_seconds=LEASE_SECONDS, beat_seconds=BEAT_SECONDS)


async def stop(etcd: EtcdServer) -> None:
    """While the loop goes on."""
    await asyncio.to_thread(etcd.stop)


async def start(etcd: EtcdServer) -> None:
    await asyncio.to_thread(etcd.start)


async def test_after_an_outage_the_watch_goes_on_where_it_was(etcd: EtcdServer) -> None:
    """What was written meanwhile, here before we are back, is told then."""
    etcd.put(P.key, P.value())
    async with following(directory(etcd)) as told:
        assert await told.next() == Listed({P.key: P})
        await stop(etcd)
        await told.first(Lost)
        assert told.nothing_more()
        await start(etcd)
        etcd.put(D.key, D.value())

        assert await told.next() == Resumed()
        assert await told.next() == Joined(D.key, D)


async def test_what_was_compacted_meanwhile_is_read_anew(etcd: EtcdServer) -> None:
    etcd.put(P.key, P.value())
    async with following(directory(etcd)) as told:
        await told.next()
        etcd.freeze()
        await told.first(Lost)
        etcd.thaw()
        etcd.delete(P.key)
        etcd.put(D.key, D.value())
        etcd.compact()

        assert await told.first(Listed) == Listed({D.key: D})


async def test_a_store_that_starts_anew_is_read_anew(etcd: EtcdServer) -> None:
    """It counts from the beginning again: a watch from the old number would say nothing."""
    for _ in range(5):
        etcd.put(P.key, P.value())
    async with following(directory(etcd)) as told:
        await told.next()
        await stop(etcd)
        await told.first(Lost)
        etcd.forget()
        await start(etcd)

        assert await told.next() == Listed({})
        etcd.put(D.key, D.value())
        assert await told.next() == Joined(D.key, D)


async def test_a_store_that_starts_anew_and_has_caught_up_is_read_anew(
    etcd: EtcdServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its name and numbers it is the same one; only its contents tell."""
    read, has_caught_up = EtcdHttp.entries, asyncio.Event()

    async def read_later(http: EtcdHttp, *what: Any) -> wire.EtcdContents:
        await has_caught_up.wait()
        return await read(http, *what)

    etcd.put(P.key, P.value())
    async with following(directory(etcd)) as told:
        await told.next()
        monkeypatch.setattr(EtcdHttp, "entries", read_later)
        await stop(etcd)
        await told.first(Lost)
        etcd.forget()
        await start(etcd)
        etcd.put(D.key, D.value())
        has_caught_up.set()

        assert await told.next() == Listed({D.key: D})


async def test_a_store_that_does_not_answer_is_lost_though_its_connections_stay(
    etcd: EtcdServer,
) -> None:
    async with following(directory(etcd)) as told:
        await told.next()
        etcd.freeze()
        await told.first(Lost)
        etcd.thaw()

        assert await told.next() == Resumed()


async def test_a_loss_is_told_once(etcd: EtcdServer) -> None:
    """However many attempts fail in it."""
    async with following(directory(etcd)) as told:
        await told.next()
        await stop(etcd)
        await told.first(Lost)
        await start(etcd)

        assert await told.next() == Resumed()


async def test_who_comes_before_the_store_is_listed_when_it_starts(etcd: EtcdServer) -> None:
    await stop(etcd)
    async with directory(etcd).announce(P), following(directory(etcd)) as told:
        assert isinstance(await told.next(), Lost)
        await start(etcd)

        listed = await told.first(Listed)
        assert listed == Listed({P.key: P}) or await told.next() == Joined(P.key, P)


async def test_an_entry_whose_lease_ended_is_made_again(
    etcd: EtcdServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was not renewed for longer than it lasts, as when this process was stopped."""
    ahead = 0.0
    monkeypatch.setattr(etcd_directory, "now", lambda: time.monotonic() + ahead)
    async with following(directory(etcd)) as told:
        await told.next()
        async with directory(etcd).announce(P) as listing:
            await told.until(Joined(P.key, P))
            revoked = asyncio.create_task(listing.revoked())
            ahead = LEASE_SECONDS
            etcd.revoke(*etcd.leases())

            assert await told.next() == Left(P.key)
            assert await told.next() == Joined(P.key, P)
            assert not revoked.done()
            revoked.cancel()


@pytest.mark.parametrize("renewed", [False, True], ids=["at once", "after a renewal"])
async def test_a_lease_that_is_revoked_is_not_made_again(etcd: EtcdServer, renewed: bool) -> None:
    async with following(directory(etcd)) as told, asyncio.timeout(PATIENCE_SECONDS):
        await told.next()
        async with directory(etcd).announce(P) as listing:
            await told.until(Joined(P.key, P))
            if renewed:
                # Before it is written anew it has been renewed.
                await listing.change(replace(P, role=Role.DECODE))
                await told.until(Left(P.key))
            etcd.revoke(*etcd.leases())

            await listing.revoked()
        assert etcd.keys() == []
        assert isinstance(await told.next(), Left)
        assert told.nothing_more()


async def test_an_etcd_that_was_set_up_anew_has_revoked_nothing(
    etcd: EtcdServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However short its outage was, and though its revisions are soon where the old one's were."""
    monkeypatch.setattr(etcd_directory, "now", lambda: 0.0)
    async with directory(etcd).announce(P) as listing, following(directory(etcd)) as told:
        listed = await told.first(Listed)
        assert listed == Listed({P.key: P}) or await told.next() == Joined(P.key, P)
        await listing.change(P)
        await stop(etcd)
        etcd.forget()
        await start(etcd)
        for _ in range(20):
            etcd.put("/elsewhere", b"")

        await told.first(Lost)
        listed = await told.first(Listed)
        assert listed == Listed({P.key: P}) or await told.next() == Joined(P.key, P)


async def test_an_empty_store_is_told_of_everybody_again(etcd: EtcdServer) -> None:
    etcd.put(D.key, D.value())
    async with directory(etcd).announce(P), following(directory(etcd)) as told:
        await told.first(Listed)
        await stop(etcd)
        etcd.forget()
        await start(etcd)
        await told.first(Lost)

        listed = await told.first(Listed)
        assert listed == Listed({P.key: P}) or await told.next() == Joined(P.key, P)


async def test_an_engine_that_dies_is_gone_when_its_lease_ends(etcd: EtcdServer) -> None:
    """Nobody says goodbye for it."""
    async with following(directory(etcd)) as told:
        await told.next()
        engine = asyncio.create_task(_dies(etcd))
        assert await told.next() == Joined(P.key, P)
        engine.cancel()

        assert await told.next() == Left(P.key)


async def _dies(etcd: EtcdServer) -> None:
    async with EtcdHttp(EtcdAccess(etcd.endpoints)) as http:
        await http.put(P.key, P.value(), await http.grant(1))
        await asyncio.Event().wait()


async def test_a_living_engine_stays_longer_than_its_lease(etcd: EtcdServer) -> None:
    async with following(directory(etcd)) as told:
        await told.next()
        async with directory(etcd).announce(P):
            await told.until(Joined(P.key, P))
            # Somebody else's lease of twice the length is the clock.
            (ours,) = etcd.leases()
            clock = etcd.ask("/v3/lease/grant", {"TTL": str(2 * LEASE_SECONDS)})["ID"]
            etcd.ask("/v3/kv/put", wire.put(D.key, D.value(), clock))
            assert isinstance(await told.next(), Joined)

            assert await told.next() == Left(D.key)
            assert etcd.leases() == [ours]


async def test_an_engine_that_changes_more_often_than_it_renews_stays(etcd: EtcdServer) -> None:
    """A write prolongs no lease."""
    roles = itertools.cycle((replace(P, role=Role.DECODE), P))
    async with following(directory(etcd)) as told:
        await told.next()
        async with directory(etcd).announce(P) as listing:
            await told.until(Joined(P.key, P))
            (ours,) = etcd.leases()
            clock = etcd.ask("/v3/lease/grant", {"TTL": str(2 * LEASE_SECONDS)})["ID"]
            etcd.ask("/v3/kv/put", wire.put(D.key, D.value(), clock))
            while clock in etcd.leases():
                await listing.change(next(roles))
                await asyncio.sleep(LEASE_SECONDS / RENEWALS / 4)

            assert etcd.leases() == [ours]


async def test_leaving_while_the_store_is_away_takes_no_longer_than_seconds(
    etcd: EtcdServer, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        async with following(directory(etcd)) as told, directory(etcd).announce(P):
            await told.first(Joined)
            await stop(etcd)

    assert "ends by itself" in caplog.text


@pytest.fixture
def other_etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdServer]:
    with etcd_server(tmp_path_factory.mktemp("other")) as server:
        yield server


async def test_where_one_endpoint_is_away_the_next_is_asked(
    etcd: EtcdServer, other_etcd: EtcdServer
) -> None:
    """Two stores stand for two members of one here: what counts is who is asked."""
    await stop(etcd)
    other_etcd.put(D.key, D.value())
    async with following(directory(etcd, other_etcd)) as told:
        assert await told.first(Listed) == Listed({D.key: D})


NOW = replace(P, role=Role.DECODE)


async def test_a_role_that_changes_while_etcd_is_away_is_told_when_it_is_back(
    etcd: EtcdServer,
) -> None:
    async with directory(etcd).announce(P) as listing:
        # Returns when it is listed as it is.
        await listing.change(P)
        await stop(etcd)
        changing = asyncio.create_task(listing.change(NOW))
        await start(etcd)

        async with asyncio.timeout(PATIENCE_SECONDS):
            await changing
        assert etcd.keys() == [NOW.key]


async def test_a_change_whose_answer_was_lost_leaves_nothing_behind(
    etcd: EtcdServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has changed back before anybody could find out whether it had arrived."""
    put, arrived = EtcdHttp.put, asyncio.Event()

    async def lost(http: EtcdHttp, *what: Any, **more: Any) -> None:
        await put(http, *what, **more)
        arrived.set()
        raise wire.EtcdError("the answer was lost")

    async with directory(etcd).announce(P) as listing, asyncio.timeout(PATIENCE_SECONDS):
        await listing.change(P)
        monkeypatch.setattr(EtcdHttp, "put", lost)
        changing = asyncio.create_task(listing.change(NOW))
        await arrived.wait()
        assert etcd.keys() == [NOW.key]
        monkeypatch.setattr(EtcdHttp, "put", put)

        await listing.change(P)

        assert etcd.keys() == [P.key]
        await changing
