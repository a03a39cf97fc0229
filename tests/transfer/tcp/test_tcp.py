"""What only the tcp backend can do wrong."""

import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pdgate.transfer.base import Descriptor, PeerLost, Range, Region, State, TransferError
from pdgate.transfer.runtime.channel import Channel
from pdgate.transfer.tcp import wire
from pdgate.transfer.tcp.backend import TcpBackend
from pdgate.transfer.tcp.owner import PURPOSE
from tests.support import waiting
from tests.support.proven import listening, to_owner

SECONDS = waiting.PATIENCE_SECONDS
OK = wire.answer(wire.TcpStatus.OK, checked=False)


@contextmanager
def owner(serve: Callable[[Channel], None]) -> Iterator[Descriptor]:
    """An owner that answers as a test wants it to."""
    with listening(PURPOSE, serve) as port:
        yield Descriptor("tcp", "00" * 16, 4096, {"host": "127.0.0.1", "port": port})


@pytest.fixture
def backend() -> Iterator[TcpBackend]:
    with closing(TcpBackend()) as tcp:
        yield tcp


@pytest.fixture
def local(backend: TcpBackend) -> Region:
    return backend.allocate(4096)


def dial(backend: TcpBackend) -> Channel:
    return to_owner(backend.allocate(1), PURPOSE)


def ok(channel: Channel) -> bytes:
    return channel.sealed(OK)


def test_an_owner_that_hangs_up_halfway_is_lost(backend: TcpBackend, local: Region) -> None:
    def half(channel: Channel) -> None:
        wire.receive_request(channel)
        channel.sock.sendall(ok(channel))
        channel.sock.sendall(b"x" * 2048)

    with owner(half) as remote:
        transfer = backend.read(local, remote, [Range(0, 0, 4096)], SECONDS)

        with pytest.raises(PeerLost, match="hung up in the middle"):
            transfer.wait(SECONDS)
        assert transfer.settled


def test_a_cancelled_read_leaves_the_memory_alone_once_it_settled(
    backend: TcpBackend, local: Region
) -> None:
    """The owner goes on to send, and nothing of it lands."""
    started, go_on, sent = threading.Event(), threading.Event(), threading.Event()

    def slow(channel: Channel) -> None:
        sock = channel.sock
        wire.receive_request(channel)
        sock.sendall(ok(channel))
        sock.sendall(b"x" * 100)
        started.set()
        go_on.wait(SECONDS)
        try:
            sock.sendall(b"y" * 3996)
        finally:
            sent.set()

    with owner(slow) as remote:
        transfer = backend.read(local, remote, [Range(0, 0, 4096)], SECONDS)
        assert started.wait(SECONDS)
        transfer.cancel()
        assert transfer.settle(SECONDS)
        go_on.set()
        assert sent.wait(SECONDS)

    assert transfer.state is State.CANCELLED
    assert b"y" not in bytes(local.memory)


def test_something_else_on_the_port_is_an_error(backend: TcpBackend, local: Region) -> None:
    def http(channel: Channel) -> None:
        channel.sock.recv(10)
        channel.sock.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    with (
        owner(http) as remote,
        pytest.raises(TransferError, match=r"was not made by the peer|reset"),
    ):
        backend.read(local, remote, [Range(0, 0, 1)], SECONDS).wait(SECONDS)


@pytest.mark.parametrize(
    "address", [{}, {"host": "h"}, {"host": "h", "port": 0}, {"host": 5, "port": 5}]
)
def test_a_descriptor_without_an_address_is_refused(
    address: dict[str, object], backend: TcpBackend, local: Region
) -> None:
    with pytest.raises(TransferError, match="descriptor has no"):
        backend.read(local, Descriptor("tcp", "00" * 16, 4096, address), [], SECONDS)


def test_an_epoch_that_is_none_is_refused(backend: TcpBackend, local: Region) -> None:
    for epoch in ("", "zz" * 16, "00" * 15):
        with pytest.raises(TransferError, match="epoch"):
            backend.read(local, replace(local.descriptor, epoch=epoch), [], SECONDS)


@settings(max_examples=30)
@given(st.binary(min_size=1, max_size=200))
def test_garbage_ends_its_own_connection_only(data: bytes) -> None:
    with closing(TcpBackend()) as tcp:
        with dial(tcp) as channel:
            sock = channel.sock
            sock.sendall(data)
            # What was left unread makes its end a reset, which may come before ours.
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_WR)
            with contextlib.suppress(ConnectionResetError):
                while sock.recv(4096):
                    pass
        region = tcp.allocate(10)
        tcp.read(region, region.descriptor, [Range(0, 5, 5)], SECONDS).wait(SECONDS)


def test_a_request_for_too_many_ranges_is_refused_unread(backend: TcpBackend) -> None:
    head = struct.pack("<4sBBxx16sII", wire.MAGIC, wire.TcpOp.READ, 0, bytes(16), 0, 2**32 - 1)
    with dial(backend) as channel:
        channel.sock.sendall(head)

        assert wire.receive_answer(channel, checked=False) is wire.TcpStatus.BAD_REQUEST
        assert channel.sock.recv(1) == b""


def test_the_owner_checks_every_range_itself(backend: TcpBackend) -> None:
    """2**64 - 1 must not wrap around to an offset inside."""
    region = backend.allocate(4096)
    epoch = bytes.fromhex(region.descriptor.epoch)
    with dial(backend) as channel:
        for bad in ((4096, 1), (2**64 - 1, 2), (0, 4097)):
            offset, length = bad
            asked = wire.TcpRequest(wire.TcpOp.READ, epoch, [0, offset], [1, length])
            channel.sock.sendall(channel.sealed(wire.encode(asked)))
            assert wire.receive_answer(channel, checked=False) is wire.TcpStatus.OUT_OF_BOUNDS


def test_connections_are_used_again(backend: TcpBackend, local: Region) -> None:
    accepted: list[Channel] = []

    def count(channel: Channel) -> None:
        accepted.append(channel)
        while request := wire.receive_request(channel):
            channel.sock.sendall(ok(channel) + bytes(request.bytes))

    with owner(count) as remote:
        for _ in range(5):
            backend.read(local, remote, [Range(0, 0, 9)], SECONDS).wait(SECONDS)

    assert len(accepted) == 1
