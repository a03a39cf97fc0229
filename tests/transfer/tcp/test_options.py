"""Checksums and several connections of the tcp backend, and peers that are slow."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace

import pytest

from pdgate.transfer.base import (
    Corrupted,
    Descriptor,
    OutOfBounds,
    PeerLost,
    Range,
    Region,
    StaleDescriptor,
    State,
    TransferError,
)
from pdgate.transfer.runtime.channel import Channel
from pdgate.transfer.runtime.handshake import ANSWER_BYTES, HELLO_BYTES, MAC_BYTES, PROOF_BYTES
from pdgate.transfer.runtime.listener import Listener, shut
from pdgate.transfer.tcp import backend as tcp
from pdgate.transfer.tcp import owner as tcp_owner
from pdgate.transfer.tcp import wire
from pdgate.transfer.tcp.backend import TcpBackend
from pdgate.transfer.tcp.owner import PURPOSE
from tests.support import waiting
from tests.support.kv_owner import pattern
from tests.support.proven import listening, to_owner

SECONDS = waiting.PATIENCE_SECONDS
LENGTH = 64 << 10
ALL = [Range(0, 0, LENGTH)]

Change = Callable[[bytes, int], bytes]
"""What a relay makes of the bytes that it reads, and how many went before them."""


@contextmanager
def relay(to: Descriptor, out: Change, back: Change) -> Iterator[Descriptor]:
    """A line to the owner that changes what goes over it."""

    def pump(source: socket.socket, sink: socket.socket, change: Change) -> None:
        passed = 0
        try:
            while data := source.recv(1 << 16):
                sink.sendall(change(data, passed))
                passed += len(data)
        except OSError:
            # One of the two hung up; so does the line.
            return
        finally:
            shut(source)
            shut(sink)

    def serve(sock: socket.socket) -> None:
        with socket.create_connection((to.address["host"], to.address["port"])) as owner:
            answers = threading.Thread(target=pump, args=(owner, sock, back))
            answers.start()
            pump(sock, owner, out)
            answers.join()

    listening = socket.create_server(("127.0.0.1", 0))
    listener = Listener("test-relay", listening, serve)
    try:
        port = listening.getsockname()[1]
        yield replace(to, address={**to.address, "host": "127.0.0.1", "port": port})
    finally:
        listener.close()


def same(data: bytes, passed: int) -> bytes:
    return data


def flip(at: int) -> Change:
    """One bit of the byte that comes as number `at`."""

    def change(data: bytes, passed: int) -> bytes:
        changed = bytearray(data)
        if passed <= at < passed + len(data):
            changed[at - passed] ^= 1
        return bytes(changed)

    return change


def filled(backend: TcpBackend, length: int = LENGTH) -> Region:
    region = backend.allocate(length)
    region.memory[:] = (pattern(251) * (length // 251 + 1))[:length]
    return region


OUT, BACK = HELLO_BYTES + PROOF_BYTES, ANSWER_BYTES
"""What goes before all else."""
HEAD = 32 + 16 + MAC_BYTES
"""Of a request for one range."""
ANSWER = 8 + MAC_BYTES


@pytest.mark.parametrize("at", [HEAD, HEAD + LENGTH // 2, HEAD + LENGTH - 1, HEAD + LENGTH])
def test_a_flipped_byte_of_a_write_is_a_named_failure_and_is_not_counted(at: int) -> None:
    with closing(TcpBackend()) as ours, closing(TcpBackend(crc=True)) as theirs:
        remote = theirs.allocate(LENGTH)
        arrival = theirs.expect(remote, 7, 1, SECONDS)
        with relay(remote.descriptor, flip(OUT + at), same) as bent:
            transfer = ours.write(filled(ours), bent, ALL, SECONDS, 7)

            with pytest.raises(Corrupted):
                transfer.wait(SECONDS)
            assert transfer.settled
            assert arrival.state is State.RUNNING

            # The line goes on: only one byte was flipped, once.
            ours.write(filled(ours), bent, ALL, SECONDS, 7).wait(SECONDS)
        arrival.wait(SECONDS)


@pytest.mark.parametrize("at", [ANSWER, ANSWER + LENGTH - 1, ANSWER + LENGTH + 3])
def test_a_flipped_byte_of_a_read_is_a_named_failure(at: int) -> None:
    with (
        closing(TcpBackend(crc=True)) as ours,
        closing(TcpBackend()) as theirs,
        relay(filled(theirs).descriptor, same, flip(BACK + at)) as bent,
    ):
        transfer = ours.read(ours.allocate(LENGTH), bent, ALL, SECONDS)

        with pytest.raises(Corrupted):
            transfer.wait(SECONDS)


@pytest.mark.parametrize("at", range(HEAD))
def test_a_flipped_byte_of_a_request_never_moves_anything_elsewhere(at: int) -> None:
    """Not even the magic or the addresses."""
    with closing(TcpBackend()) as ours, closing(TcpBackend(crc=True)) as theirs:
        remote, bystander = theirs.allocate(2 * LENGTH), theirs.allocate(LENGTH)
        half = [Range(0, LENGTH, LENGTH)]
        with (
            relay(remote.descriptor, flip(OUT + at), same) as bent,
            pytest.raises(TransferError),
        ):
            # A count that was flipped upwards leaves the owner waiting for more.
            ours.write(filled(ours), bent, half, 0.2, 1).wait(SECONDS)

        assert not any(remote.memory)
        assert not any(bystander.memory)


def test_without_checksums_a_flipped_byte_goes_unseen() -> None:
    """So the tests above see the checksum at work, and not the kernel's."""
    with closing(TcpBackend()) as ours, closing(TcpBackend()) as theirs:
        remote, local = theirs.allocate(LENGTH), filled(ours)
        with relay(remote.descriptor, flip(OUT + HEAD + 100), same) as bent:
            ours.write(local, bent, ALL, SECONDS).wait(SECONDS)

        assert remote.memory != local.memory


def test_an_owner_with_checksums_refuses_peers_without() -> None:
    with closing(TcpBackend()) as ours, closing(TcpBackend(crc=True)) as theirs:
        remote = theirs.allocate(LENGTH)
        without = {**remote.descriptor.address, "crc": False}

        with pytest.raises(TransferError):
            ours.write(
                filled(ours), replace(remote.descriptor, address=without), ALL, SECONDS
            ).wait(SECONDS)

        assert not any(remote.memory)


@pytest.mark.parametrize("crc", [False, True])
def test_the_bytes_of_a_refused_write_are_dropped_and_the_line_stays_good(crc: bool) -> None:
    """They are sent without waiting for leave."""
    with closing(TcpBackend(crc=crc)) as ours, closing(TcpBackend()) as theirs:
        local, remote = filled(ours), theirs.allocate(LENGTH)
        ours.write(local, remote.descriptor, ALL, SECONDS).wait(SECONDS)
        (before,) = ours._links._idle.values()
        first = before[0]
        gone = theirs.allocate(LENGTH)
        gone.close()
        lie = replace(remote.descriptor, length=LENGTH + 1)
        for bad, ranges, error in (
            (gone.descriptor, ALL, StaleDescriptor),
            (lie, [Range(0, 1, LENGTH)], OutOfBounds),
        ):
            with pytest.raises(error):
                ours.write(local, bad, ranges, SECONDS).wait(SECONDS)

        remote.memory[:] = bytes(LENGTH)
        ours.write(local, remote.descriptor, ALL, SECONDS).wait(SECONDS)

        assert remote.memory == local.memory
        (after,) = ours._links._idle.values()
        assert after == [first]


@pytest.fixture
def small_shares(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tcp, "STRIPE_BYTES", LENGTH // 8)


@pytest.mark.parametrize("crc", [False, True])
def test_a_write_over_several_connections_is_whole_and_counts_once(
    crc: bool, small_shares: None
) -> None:
    with closing(TcpBackend(connections=4, crc=crc)) as ours, closing(TcpBackend()) as theirs:
        local, remote = filled(ours), theirs.allocate(LENGTH)
        pages = [Range(i * 1024, (63 - i) * 1024, 1024) for i in range(64)]

        ours.write(local, remote.descriptor, pages, SECONDS, 5).wait(SECONDS)

        theirs.expect(remote, 5, 1, SECONDS).wait(SECONDS)
        assert theirs.expect(remote, 5, 1, SECONDS).state is State.RUNNING
        back = ours.allocate(LENGTH)
        ours.read(back, remote.descriptor, pages, SECONDS).wait(SECONDS)
        assert back.memory == local.memory
        (idle,) = ours._links._idle.values()
        assert 1 < len(idle) <= 4


def test_a_transfer_over_several_connections_ends_with_what_went_wrong_first(
    small_shares: None,
) -> None:
    """And not with what became of the other connections."""
    with closing(TcpBackend(connections=4)) as ours, closing(TcpBackend()) as theirs:
        local, gone = filled(ours), theirs.allocate(LENGTH)
        gone.close()

        for _ in range(10):
            with pytest.raises(StaleDescriptor):
                ours.write(local, gone.descriptor, ALL, SECONDS, 1).wait(SECONDS)


def test_a_connection_that_breaks_ends_all_of_a_transfer(small_shares: None) -> None:
    """The others would move bytes that nobody has any use for."""
    accepted = threading.Semaphore(0)
    first = threading.Event()

    def serve(channel: Channel) -> None:
        sock = channel.sock
        accepted.release()
        if not first.is_set():
            first.set()
            # When all four are there; the others are left hanging.
            for _ in range(4):
                assert accepted.acquire(timeout=SECONDS)
            return
        while sock.recv(1 << 16):
            pass

    with listening(PURPOSE, serve) as port:
        address = {"host": "127.0.0.1", "port": port}
        remote = Descriptor("tcp", "00" * 16, LENGTH, address)
        with closing(TcpBackend(connections=4)) as ours:
            transfer = ours.write(filled(ours), remote, ALL, 60, 1)

            with pytest.raises(PeerLost):
                transfer.wait(SECONDS)
            assert transfer.settle(SECONDS)


@pytest.mark.parametrize("connections", [1, 4])
def test_a_receiver_that_does_not_keep_up_holds_up_nobody_and_can_be_given_up(
    connections: int, small_shares: None
) -> None:
    """It reads a little and then nothing, so that more is on its way than sockets hold."""
    length = 64 << 20
    closing_down = threading.Event()

    def slow(channel: Channel) -> None:
        channel.sock.recv(1000)
        closing_down.wait(SECONDS)

    with listening(PURPOSE, slow) as port, ExitStack() as stack:
        stack.callback(closing_down.set)
        ours = stack.enter_context(closing(TcpBackend(connections=connections)))
        theirs = stack.enter_context(closing(TcpBackend()))
        local, quick = ours.allocate(length), theirs.allocate(LENGTH)
        address = {"host": "127.0.0.1", "port": port}
        remote = Descriptor("tcp", "00" * 16, length, address)
        stuck = ours.write(local, remote, [Range(0, 0, length)], 60, 1)

        ours.write(local, quick.descriptor, ALL, SECONDS).wait(SECONDS)
        assert stuck.state is State.RUNNING

        with pytest.raises(TransferError, match="took over"):
            stuck.wait(0.05)
        assert stuck.settle(SECONDS)


def test_an_owner_lets_go_of_a_reader_that_stopped_reading(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its thread and its hold on the region end, so that the region can be closed at once."""
    monkeypatch.setattr(tcp_owner, "STALL_SECONDS", 0.1)
    with closing(TcpBackend()) as theirs:
        remote = theirs.allocate(64 << 20)
        with to_owner(remote, PURPOSE) as channel:
            epoch = bytes.fromhex(remote.descriptor.epoch)
            asked = wire.encode(wire.TcpRequest(wire.TcpOp.READ, epoch, [0], [64 << 20]))
            channel.sock.sendall(channel.sealed(asked))
            assert wire.receive_answer(channel, checked=False) is wire.TcpStatus.OK

            open_ = theirs._owner._listener._open
            waiting.wait_until(lambda: not open_, "the end of its thread")
            assert not remote._entrance._users  # type: ignore[attr-defined]


def test_the_owner_of_the_memory_may_ask_for_several_connections(small_shares: None) -> None:
    """As the mover of its peer, which has no settings of its own, is told by it alone."""
    with closing(TcpBackend()) as ours, closing(TcpBackend(connections=4)) as theirs:
        local, remote = filled(ours), theirs.allocate(LENGTH)

        def several() -> bool:
            """On a busy machine the first connection may have written all shares before there is a second one."""
            ours.write(local, remote.descriptor, ALL, SECONDS).wait(SECONDS)
            assert remote.memory == local.memory
            (idle,) = ours._links._idle.values()
            assert len(idle) <= 4
            return len(idle) > 1

        waiting.wait_until(several, "several connections")


@pytest.mark.parametrize("asked", [0, -1, 10**9, "8", None])
def test_a_peer_that_asks_for_a_strange_number_of_connections_gets_what_is_possible(
    asked: object, small_shares: None
) -> None:
    with closing(TcpBackend()) as ours, closing(TcpBackend()) as theirs:
        local, remote = filled(ours), theirs.allocate(LENGTH)
        address = {**remote.descriptor.address, "connections": asked}

        ours.write(local, replace(remote.descriptor, address=address), ALL, SECONDS).wait(SECONDS)

        assert remote.memory == local.memory


@pytest.mark.parametrize("connections", [0, 17])
def test_there_is_at_least_one_connection_and_not_any_number(connections: int) -> None:
    with pytest.raises(ValueError, match=f"1 to 16 .*{connections}"):
        TcpBackend(connections=connections)
