"""Connections that have proven themselves, for tests that speak for one end."""

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from pdgate.transfer.base import Region
from pdgate.transfer.messenger import messages
from pdgate.transfer.runtime.channel import Channel, Door, dial
from pdgate.transfer.runtime.fleet import Identity
from pdgate.transfer.runtime.handshake import Answering, Dialling
from pdgate.transfer.runtime.listener import Listener
from tests.support import waiting

SECONDS = waiting.PATIENCE_SECONDS


def channel(
    address: tuple[str, int], purpose: str = messages.PURPOSE, identity: Identity | None = None
) -> Channel:
    """To a listener of ours; nothing takes longer than SECONDS."""
    made = dial(address, identity or Identity(), purpose, SECONDS)
    made.sock.settimeout(SECONDS)
    return made


def to_owner(region: Region, purpose: str) -> Channel:
    """To the owner of a region."""
    address = region.descriptor.address
    return channel((address["host"], address["port"]), purpose)


def pair() -> tuple[Channel, Channel]:
    """Both ends of one connection."""
    ours, theirs = socket.socketpair()
    dialling = Dialling(Identity(), "test")
    answering = Answering(Identity(), ["test"], dialling.hello)
    proof, session = dialling.answered(answering.answer)
    return Channel(ours, session), Channel(theirs, answering.proven(proof))


@contextmanager
def listening(purpose: str, serve: Callable[[Channel], None]) -> Iterator[int]:
    """A port on loopback whose callers, once proven, are served as a test wants it."""
    sock = socket.create_server(("127.0.0.1", 0))
    listener = Listener("test", sock, Door("test", Identity(), {purpose: serve}))
    try:
        yield sock.getsockname()[1]
    finally:
        listener.close()
