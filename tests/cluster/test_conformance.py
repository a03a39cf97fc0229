"""What holds for every directory. Each test runs against memory and against a real etcd."""

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from pdgate.cluster.directory import Directory, Joined, Left, Listed, Refused
from pdgate.cluster.etcd import Etcd
from pdgate.cluster.member import Member
from pdgate.cluster.memory import Memory
from pdgate.protocols.instance import Role
from tests.cluster.watching import D, P, following

Put = Callable[[str, bytes], None]


class Store:
    """A directory, and the way of somebody else to write into its store."""

    def __init__(self, directory: Directory, put: Put, delete: Callable[[str], None]) -> None:
        self.directory, self.put, self.delete = directory, put, delete


@pytest.fixture(params=["memory", "etcd"])
def store(request: pytest.FixtureRequest) -> Iterator[Store]:
    if request.param == "memory":
        memory = Memory()
        yield Store(memory, memory.put, memory.delete)
    else:
        server = request.getfixturevalue("etcd")
        yield Store(Etcd(server.endpoints), server.put, server.delete)


async def test_an_empty_directory_says_so(store: Store) -> None:
    async with following(store.directory) as told:
        assert await told.next() == Listed({})


async def test_who_is_there_is_listed_whole(store: Store) -> None:
    store.put(P.key, P.value())
    store.put(D.key, D.value())

    async with following(store.directory) as told:
        assert await told.next() == Listed({P.key: P, D.key: D})


async def test_who_announces_itself_joins_and_leaves_with_its_block(store: Store) -> None:
    async with following(store.directory) as told:
        await told.next()
        async with store.directory.announce(P):
            assert await told.next() == Joined(P.key, P)
        before = await told.until(Left(P.key))

        # It may say that it drains before it is gone, but nothing else.
        assert before in ([], [Joined(P.key, P.draining())])


async def test_a_role_changes_in_one_step(store: Store) -> None:
    """First it is there in the new role, then gone in the old one; and both leave with the block."""
    now = replace(P, role=Role.DECODE)
    async with following(store.directory) as told:
        await told.next()
        async with store.directory.announce(P) as listing:
            assert await told.next() == Joined(P.key, P)

            await listing.change(now)

            assert [await told.next() for _ in range(2)] == [Joined(now.key, now), Left(P.key)]
            async with following(store.directory) as newcomer:
                assert await newcomer.next() == Listed({now.key: now})
            await listing.change(P)
            assert [await told.next() for _ in range(2)] == [Joined(P.key, P), Left(now.key)]
        await told.until(Left(P.key))


async def test_entries_are_listed_in_the_order_of_their_writing(store: Store) -> None:
    """So that of two at one address the later one can be told."""
    for one in (D, P, replace(D, epoch="two")):
        store.put(one.key, one.value())

    async with following(store.directory) as told:
        listed = await told.first(Listed)

    assert list(listed.members) == [P.key, D.key]


async def test_every_follower_is_told(store: Store) -> None:
    async with following(store.directory) as one, following(store.directory) as other:
        for told in (one, other):
            await told.next()
        async with store.directory.announce(D):
            assert [await told.next() for told in (one, other)] == [Joined(D.key, D)] * 2


async def test_a_restart_at_the_same_address_is_told(store: Store) -> None:
    """The first process may leave later than the second one came."""
    again = replace(P, epoch="two")
    async with following(store.directory) as told:
        await told.next()
        async with store.directory.announce(P):
            await told.until(Joined(P.key, P))
            store.put(P.key, again.value())

            assert await told.next() == Joined(P.key, again)


async def test_the_entry_of_neuron_is_read(store: Store) -> None:
    async with following(store.directory) as told:
        await told.next()
        store.put("/workers/decode/10.0.0.9/8000", b'{"connections": []}')

        joined = await told.first(Joined)

        assert joined.member == Member(Role.DECODE, "10.0.0.9", 8000, protocol="neuron")


async def test_nonsense_is_refused_and_harms_nobody_else(store: Store) -> None:
    store.put("/workers/prefill/10.0.0.8/8000", b"no JSON")
    async with following(store.directory) as told:
        listed = await told.first(Listed)
        assert listed == Listed(
            {}, refused={"/workers/prefill/10.0.0.8/8000": "its value is no JSON"}
        )

        store.put("/workers/anything/10.0.0.8/8000", b"{}")
        store.put(P.key, P.value())

        assert isinstance(await told.next(), Refused)
        assert await told.next() == Joined(P.key, P)


async def test_what_somebody_else_deletes_is_gone(store: Store) -> None:
    store.put(P.key, P.value())
    async with following(store.directory) as told:
        await told.next()
        store.delete(P.key)

        assert await told.next() == Left(P.key)
