"""What only the shm backend can do wrong."""

import contextlib
import gc
import os
import socket
import subprocess
import sys
import weakref
from contextlib import closing
from pathlib import Path

import pytest

from pdgate.transfer.base import PeerLost, Range, StaleDescriptor, State, TransferError
from pdgate.transfer.runtime import strangers
from pdgate.transfer.shm import owner as shm_owner
from pdgate.transfer.shm import wire
from pdgate.transfer.shm.backend import ShmBackend
from pdgate.transfer.shm.segment import HEADER_BYTES, Segment, create
from tests.support import waiting
from tests.support.kv_owner import Owned
from tests.support.told import ROOT

SECONDS = waiting.PATIENCE_SECONDS


def test_a_killed_owner_leaves_nothing_behind() -> None:
    before = set(Path("/dev/shm").iterdir())
    with Owned("shm", 4096) as owner:
        owner.kill()

    ours = [left for left in set(Path("/dev/shm").iterdir()) - before if "pdgate" in left.name]
    assert ours == []


def test_a_process_that_closes_says_nothing_at_its_end() -> None:
    """Python's own shared memory warns of leaks that are none, and unlinks what others use."""
    program = (
        "from pdgate.transfer.shm.backend import ShmBackend\n"
        "from pdgate.transfer.base import Range\n"
        "a, b = ShmBackend(), ShmBackend()\n"
        "mine, its = a.allocate(4096), b.allocate(4096)\n"
        "a.read(mine, its.descriptor, [Range(0, 0, 4096)], 10).wait(10)\n"
        "a.close(); b.close()\n"
    )
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-c", program],
        cwd=ROOT,
        capture_output=True,
        check=False,
        timeout=60,
    )

    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_a_region_closed_in_the_middle_of_a_read_fails_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bytes are there, but they may be of the region's next life."""
    from pdgate.transfer.shm import backend as shm

    with closing(ShmBackend()) as ours, closing(ShmBackend()) as theirs:
        local, remote = ours.allocate(4096), theirs.allocate(4096)
        copy = shm._copy

        def copy_and_close(*args: object) -> None:
            copy(*args)  # type: ignore[arg-type]
            remote.close()

        monkeypatch.setattr(shm, "_copy", copy_and_close)

        with pytest.raises(StaleDescriptor):
            ours.read(local, remote.descriptor, [Range(0, 0, 4096)], SECONDS).wait(SECONDS)


def test_a_small_copy_to_a_peer_that_we_know_is_over_when_the_call_returns() -> None:
    """To hand it to a thread would take longer than to copy."""
    with closing(ShmBackend()) as ours, closing(ShmBackend()) as theirs:
        local, remote = ours.allocate(4096), theirs.allocate(4096)
        ours.read(local, remote.descriptor, [Range(0, 0, 1)], SECONDS).wait(SECONDS)
        local.memory[:4] = b"here"

        transfer = ours.write(local, remote.descriptor, [Range(0, 8, 4)], SECONDS, 1)

        assert transfer.state is State.DONE
        assert bytes(remote.memory[8:12]) == b"here"
        theirs.expect(remote, 1, 1, SECONDS).wait(SECONDS)


def test_who_writes_never_waits_for_an_owner_that_does_not_count() -> None:
    """Its socket fills up; from there on threads wait, and their writes end with the owner."""
    more_than_a_socket_holds = 2_000
    with closing(ShmBackend()) as ours, Owned("shm", 4096) as owner:
        local = ours.allocate(4096)
        ours.read(local, owner.descriptor, [Range(0, 0, 1)], SECONDS).wait(SECONDS)
        owner.freeze()

        writes = [
            ours.write(local, owner.descriptor, [Range(0, 0, 1)], SECONDS, 1)
            for _ in range(more_than_a_socket_holds)
        ]
        assert writes[-1].state is State.RUNNING

        owner.kill()

        with pytest.raises(PeerLost):
            writes[-1].wait(SECONDS)
        assert writes[-1].settle(SECONDS)


def test_a_segment_that_could_be_cut_short_is_not_mapped() -> None:
    """Reading past the end of a mapped file kills the reader."""
    fd = os.memfd_create("test", os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(fd, HEADER_BYTES + 10)

        with pytest.raises(TransferError, match="sealed"):
            Segment(fd, 10)
    finally:
        os.close(fd)


def test_a_segment_of_another_size_is_not_mapped() -> None:
    fd, _ = create(10, bytes(16))
    try:
        with pytest.raises(TransferError, match="bytes"):
            Segment(fd, 11)
    finally:
        os.close(fd)


def test_the_memory_of_a_dead_owner_is_let_go() -> None:
    """It may be gigabytes, and each restart of a peer would hold on to as many more."""
    with closing(ShmBackend()) as ours, Owned("shm", 4096) as first, Owned("shm", 4096) as second:
        local, all_ = ours.allocate(4096), [Range(0, 0, 4096)]
        ours.read(local, first.descriptor, all_, SECONDS).wait(SECONDS)
        segment = weakref.ref(ours._links._links[bytes.fromhex(first.descriptor.epoch)].segment)
        first.kill()

        ours.read(local, second.descriptor, all_, SECONDS).wait(SECONDS)

        gc.collect()
        assert segment() is None


def test_a_name_belongs_to_one_living_process() -> None:
    with (
        closing(ShmBackend(socket_name="pdgate-test-taken")),
        pytest.raises(OSError, match="in use"),
    ):
        ShmBackend(socket_name="pdgate-test-taken")


@pytest.mark.parametrize("data", [b"x", b"PDSM" + bytes(17), b"PDSX" + bytes(16)])
def test_garbage_is_refused(data: bytes) -> None:
    with closing(ShmBackend()) as shm, closing(wire.new_socket()) as sock:
        sock.settimeout(SECONDS)
        sock.connect(wire.path(shm.allocate(1).descriptor.address["socket"]))
        sock.sendall(data)

        status, _, _, fds, _ = wire.receive_reply(sock)

        assert status is wire.ShmStatus.REFUSED
        assert fds == []


def test_a_stranger_gets_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Abstract sockets have no permissions of their own."""
    monkeypatch.setattr(wire, "same_user", lambda _: False)
    with closing(ShmBackend()) as ours, closing(ShmBackend()) as theirs:
        remote = theirs.allocate(10).descriptor

        with pytest.raises(TransferError, match="refused"):
            ours.read(ours.allocate(10), remote, [Range(0, 0, 10)], SECONDS).wait(SECONDS)


def test_strangers_that_say_nothing_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each would cost a thread and a descriptor for as long as it likes, whoever's it is."""
    monkeypatch.setattr(wire, "same_user", lambda _: False)
    with closing(ShmBackend()) as shm, contextlib.ExitStack() as stack:
        socks = [stack.enter_context(closing(wire.new_socket())) for _ in range(strangers.MOST + 8)]
        name = shm.allocate(1).descriptor.address["socket"]
        for sock in socks:
            sock.connect(wire.path(name))
        socks[0].settimeout(SECONDS)

        assert socks[0].recv(1) == b""


def test_a_peer_that_says_nothing_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shm_owner, "HELLO_SECONDS", 0.1)
    with closing(ShmBackend()) as shm, closing(wire.new_socket()) as sock:
        sock.settimeout(SECONDS)
        sock.connect(wire.path(shm.allocate(1).descriptor.address["socket"]))

        assert sock.recv(1) == b""


def test_the_kernel_says_who_is_calling() -> None:
    with closing(wire.new_socket()) as listening:
        listening.bind(wire.path("pdgate-test-who"))
        listening.listen()
        with closing(wire.new_socket()) as sock:
            sock.connect(wire.path("pdgate-test-who"))
            accepted, _ = listening.accept()
            with accepted:
                assert wire.same_user(accepted)
                assert accepted.type == socket.SOCK_SEQPACKET
