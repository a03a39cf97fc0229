"""What holds for every directory; against real servers where there are such."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from pdgate.cluster.directory import Joined, Left, Listed, Refused
from pdgate.cluster.member import Member
from pdgate.cluster.read_only import CannotAnnounce
from pdgate.protocols.instance import Role
from tests.cluster.stores import KINDS, Kind, Store
from tests.cluster.watching import PATIENCE_SECONDS, following


def _stores(can: Callable[[Kind], bool]) -> list[str]:
    return [name for name, kind in KINDS.items() if can(kind)]


@contextmanager
def _made(request: pytest.FixtureRequest) -> Iterator[Store]:
    with KINDS[request.param].make(request) as store:
        yield store


@pytest.fixture(params=KINDS)
def store(request: pytest.FixtureRequest) -> Iterator[Store]:
    with _made(request) as store:
        yield store


@pytest.fixture(params=_stores(lambda kind: kind.takes_anything))
def open_store(request: pytest.FixtureRequest) -> Iterator[Store]:
    with _made(request) as store:
        yield store


@pytest.fixture(params=_stores(lambda kind: kind.announces))
def announcing(request: pytest.FixtureRequest) -> Iterator[Store]:
    with _made(request) as store:
        yield store


@pytest.fixture(params=_stores(lambda kind: not kind.announces))
def read_only(request: pytest.FixtureRequest) -> Iterator[Store]:
    with _made(request) as store:
        yield store


async def test_an_empty_directory_says_so(store: Store) -> None:
    async with following(store.directory) as told:
        assert await told.next() == Listed({})


async def test_who_is_there_is_listed_whole(store: Store) -> None:
    store.add(store.p)
    store.add(store.d)

    async with following(store.directory) as told:
        assert await told.next() == Listed({store.p.key: store.p, store.d.key: store.d})


async def test_every_follower_is_told(store: Store) -> None:
    store.add(store.d)
    async with following(store.directory) as one, following(store.directory) as other:
        for told in (one, other):
            assert await told.next() == Listed({store.d.key: store.d})


async def test_who_comes_and_goes_is_told(store: Store) -> None:
    p, d = store.p, store.d
    store.add(p)
    async with following(store.directory) as told:
        await told.next()
        store.add(d)
        assert await told.next() == Joined(d.key, d)
        store.remove(p.key)
        assert await told.next() == Left(p.key)
        store.remove(d.key)
        assert await told.next() == Left(d.key)
        store.add(p)
        assert await told.next() == Joined(p.key, p)


async def test_who_cannot_announce_itself_is_told_so(read_only: Store) -> None:
    with pytest.raises(CannotAnnounce, match=read_only.p.host):
        read_only.directory.announce(read_only.p)


async def test_who_announces_itself_joins_and_leaves_with_its_block(announcing: Store) -> None:
    p = announcing.p
    async with following(announcing.directory) as told:
        await told.next()
        async with announcing.directory.announce(p):
            assert await told.next() == Joined(p.key, p)
        before = await told.until(Left(p.key))

        # It may say that it drains before it is gone, but nothing else.
        assert before in ([], [Joined(p.key, p.draining())])


async def test_an_entry_that_another_hand_deletes_stays_deleted(announcing: Store) -> None:
    """And its engine hears of it: that is how a fleet is made smaller."""
    p, now = announcing.p, replace(announcing.p, role=Role.DECODE)
    async with following(announcing.directory) as told, asyncio.timeout(PATIENCE_SECONDS):
        await told.next()
        async with announcing.directory.announce(p) as listing:
            assert await told.next() == Joined(p.key, p)
            # Returns when the store has it.
            await listing.change(now)
            await told.until(Left(p.key))
            announcing.remove(now.key)

            assert await told.next() == Left(now.key)
            await listing.revoked()
        assert told.nothing_more()


async def test_a_role_changes_in_one_step(announcing: Store) -> None:
    """First it is there in the new role, then gone in the old one; and both leave with the block."""
    p = announcing.p
    now = replace(p, role=Role.DECODE)
    async with following(announcing.directory) as told:
        await told.next()
        async with announcing.directory.announce(p) as listing:
            assert await told.next() == Joined(p.key, p)

            await listing.change(now)

            assert [await told.next() for _ in range(2)] == [Joined(now.key, now), Left(p.key)]
            async with following(announcing.directory) as newcomer:
                assert await newcomer.next() == Listed({now.key: now})
            await listing.change(p)
            assert [await told.next() for _ in range(2)] == [Joined(p.key, p), Left(now.key)]
        await told.until(Left(p.key))


async def test_every_follower_is_told_of_a_newcomer(announcing: Store) -> None:
    d = announcing.d
    async with (
        following(announcing.directory) as one,
        following(announcing.directory) as other,
    ):
        for told in (one, other):
            await told.next()
        async with announcing.directory.announce(d):
            assert [await told.next() for told in (one, other)] == [Joined(d.key, d)] * 2


async def test_a_restart_at_the_same_address_is_told(announcing: Store) -> None:
    """The first process may leave later than the second one came, which stays."""
    p = announcing.p
    again = replace(p, epoch="two")
    async with following(announcing.directory) as told:
        await told.next()
        async with announcing.directory.announce(p):
            await told.until(Joined(p.key, p))
            announcing.add(again)

            assert await told.next() == Joined(p.key, again)


async def test_entries_are_listed_in_the_order_of_their_writing(open_store: Store) -> None:
    """So that of two at one address the later one can be told."""
    p, d = open_store.p, open_store.d
    for one in (d, p, replace(d, epoch="two")):
        open_store.add(one)

    async with following(open_store.directory) as told:
        listed = await told.first(Listed)

    assert list(listed.members) == [p.key, d.key]


async def test_an_entry_that_says_something_else_is_told(open_store: Store) -> None:
    p = open_store.p
    open_store.add(p)
    async with following(open_store.directory) as told:
        await told.next()
        open_store.add(p.draining())

        assert await told.next() == Joined(p.key, p.draining())


async def test_the_entry_of_neuron_is_read(open_store: Store) -> None:
    assert open_store.write is not None
    async with following(open_store.directory) as told:
        await told.next()
        open_store.write("/workers/decode/10.0.0.9/8000", b'{"connections": []}')

        joined = await told.first(Joined)

        assert joined.member == Member(Role.DECODE, "10.0.0.9", 8000, protocol="neuron")


async def test_nonsense_is_refused_and_harms_nobody_else(open_store: Store) -> None:
    assert open_store.write is not None
    open_store.write("/workers/prefill/10.0.0.8/8000", b'"no object"')
    async with following(open_store.directory) as told:
        listed = await told.first(Listed)
        assert listed == Listed(
            {}, refused={"/workers/prefill/10.0.0.8/8000": "its value is no JSON object"}
        )

        open_store.write("/workers/anything/10.0.0.8/8000", b"{}")
        assert isinstance(await told.next(), Refused)

        open_store.add(open_store.p)
        assert await told.next() == Joined(open_store.p.key, open_store.p)


async def test_an_entry_of_a_newer_version_is_refused(open_store: Store) -> None:
    """What it says may mean something else then."""
    assert open_store.write is not None
    async with following(open_store.directory) as told:
        await told.next()
        open_store.write("/workers/prefill/10.0.0.8/8000", b'{"version": 2}')

        refused = await told.first(Refused)

        assert "version 2" in refused.why
