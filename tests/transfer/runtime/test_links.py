"""Connections that are kept for the next transfer, as long as there is somebody to have one with."""

import os
from collections.abc import Iterator
from contextlib import closing

import pytest

from pdgate.transfer.runtime.channel import Channel
from pdgate.transfer.runtime.fleet import Identity
from pdgate.transfer.runtime.links import Address, Links
from tests.support import waiting
from tests.support.proven import listening

SECONDS = waiting.PATIENCE_SECONDS
PURPOSE = "test"
AT_ONCE = 3


@pytest.fixture
def links() -> Iterator[Links]:
    with closing(Links(Identity(), PURPOSE)) as links:
        yield links


def until_it_leaves(channel: Channel) -> None:
    channel.sock.recv(1)


def used(links: Links, port: int) -> list[Channel]:
    """So many at once, and all given back."""
    address = Address("127.0.0.1", port)
    channels = [links.take(address) for _ in range(AT_ONCE)]
    for channel in channels:
        links.give_back(address, channel)
    return channels


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_connections_to_past_lives_of_a_peer_are_closed(links: Links) -> None:
    """Each life has a port of its own, so nobody asks for those of the last one again."""
    before = open_files()

    for _ in range(10):
        with listening(PURPOSE, until_it_leaves) as port:
            used(links, port)

    assert open_files() <= before + AT_ONCE
    assert len(links._idle) <= 1


def test_connections_to_other_peers_stay_when_one_is_gone(links: Links) -> None:
    with listening(PURPOSE, until_it_leaves) as stays:
        kept = used(links, stays)
        with listening(PURPOSE, until_it_leaves) as goes:
            gone = used(links, goes)
        with listening(PURPOSE, until_it_leaves) as comes:
            used(links, comes)
            assert all(channel.sock.fileno() == -1 for channel in gone)

            assert set(used(links, stays)) == set(kept)
