"""Connections that are kept for the next transfer, as long as there is somebody to have one with."""

import os
import threading
from collections.abc import Iterator
from contextlib import closing

import pytest

from pdgate.transfer.runtime.channel import Channel
from pdgate.transfer.runtime.fleet import Identity
from pdgate.transfer.runtime.links import Address, Links
from pdgate.transfer.runtime.sockets import hung_up
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


def test_a_peer_is_gone_when_no_connection_to_it_is_left_not_when_the_idle_ones_have_ended() -> (
    None
):
    """One that is in use shows that it lives."""
    gone: list[Address] = []
    first = threading.Event()

    def serve(channel: Channel) -> None:
        if first.is_set():
            until_it_leaves(channel)
        else:
            first.set()
            assert hang_up.wait(SECONDS)

    hang_up = threading.Event()
    with (
        closing(Links(Identity(), PURPOSE, gone.append)) as links,
        listening(PURPOSE, serve) as port,
        listening(PURPOSE, until_it_leaves) as elsewhere,
    ):
        address, another = Address("127.0.0.1", port), Address("127.0.0.1", elsewhere)
        idle = links.take(address)
        assert first.wait(SECONDS)
        in_use = links.take(address)
        links.give_back(address, idle)
        hang_up.set()
        waiting.wait_until(lambda: hung_up(idle.sock), "the end of the idle one")

        links.give_back(another, links.take(another))
        assert idle.sock.fileno() == -1
        assert gone == []
        links.drop(address, in_use)

        assert gone == [address]
        assert not links._in_use


def test_a_peer_that_cannot_be_reached_any_more_is_gone() -> None:
    gone: list[Address] = []
    with closing(Links(Identity(), PURPOSE, gone.append)) as links:
        with listening(PURPOSE, until_it_leaves) as port:
            address = Address("127.0.0.1", port)
            channel = links.take(address)
            links.give_back(address, channel)
        waiting.wait_until(lambda: hung_up(channel.sock), "its end")

        with pytest.raises(OSError, match="refused"):
            links.take(address)

        assert gone == [address]


def test_connections_to_other_peers_stay_when_one_is_gone(links: Links) -> None:
    with listening(PURPOSE, until_it_leaves) as stays:
        kept = used(links, stays)
        with listening(PURPOSE, until_it_leaves) as goes:
            gone = used(links, goes)
        with listening(PURPOSE, until_it_leaves) as comes:
            used(links, comes)
            assert all(channel.sock.fileno() == -1 for channel in gone)

            assert set(used(links, stays)) == set(kept)
