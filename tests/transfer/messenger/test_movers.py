"""Who writes: threads of the engine, or a process of its own that can die or hang."""

import dataclasses
import os
import queue
import secrets
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass

import pytest

from pdgate.transfer import descriptors, registry
from pdgate.transfer.base import Backend, PeerLost, Range, Region, TransferError
from pdgate.transfer.descriptors import new_epoch
from pdgate.transfer.messenger import mover_wire
from pdgate.transfer.messenger.mover import Destination, Mover, ThreadMover
from pdgate.transfer.messenger.mover_process import MoverOrders
from pdgate.transfer.messenger.process_mover import ProcessMover
from pdgate.transfer.runtime import links
from pdgate.transfer.runtime.jobs import MAX_THREADS
from pdgate.transfer.shm import wire
from tests.support import freezing, waiting
from tests.support.kv_owner import pattern

SECONDS = waiting.PATIENCE_SECONDS
LENGTH = 4096
IMMEDIATE = 7


@dataclass
class Scene:
    """Our memory and its mover, and memory of a peer with the connection that it asked on."""

    mover: Mover
    ours: Region
    theirs: Region
    theirs_backend: Backend
    line: socket.socket
    peer: socket.socket

    def open(self) -> Destination:
        return self.mover.open(self.theirs.descriptor, self.line.fileno())

    def open_to_nobody(self, stack: ExitStack) -> Destination:
        """A peer that takes connections and never says a word, as a frozen one does."""
        right = self.theirs.descriptor
        if "socket" in right.address:
            name = f"pdgate-test-{secrets.token_hex(8)}"
            mute = stack.enter_context(wire.new_socket())
            mute.bind(wire.path(name))
            mute.listen()
            there = {"socket": name}
        else:
            mute = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            there = {**right.address, "port": mute.getsockname()[1]}
        wrong = dataclasses.replace(right, epoch=new_epoch(), address=there)
        return self.mover.open(wrong, self.line.fileno())

    def write(self, to: Destination) -> "queue.Queue[TransferError | None]":
        ended: queue.Queue[TransferError | None] = queue.Queue()
        to.write([Range(0, 8, 16)], time.monotonic() + SECONDS, IMMEDIATE, ended.put)
        return ended

    @property
    def process(self) -> ProcessMover:
        assert isinstance(self.mover, ProcessMover)
        return self.mover

    def freeze(self) -> None:
        freezing.freeze(self.process.pid)

    def thaw(self) -> None:
        freezing.thaw(self.process.pid)

    def kill(self) -> None:
        os.kill(self.process.pid, signal.SIGKILL)


@pytest.fixture
def memory(backend: str) -> Iterator[tuple[Backend, Region, Backend, Region]]:
    with closing(registry.load(backend)) as ours, closing(registry.load(backend)) as theirs:
        region = ours.allocate(LENGTH)
        region.memory[:] = pattern(LENGTH)
        yield ours, region, theirs, theirs.allocate(LENGTH)


@pytest.fixture
def scene(
    request: pytest.FixtureRequest, memory: tuple[Backend, Region, Backend, Region]
) -> Iterator[Scene]:
    kind = getattr(request, "param", "process")
    backend, ours, theirs_backend, theirs = memory
    with ExitStack() as stack:
        in_process = kind == "process"
        mover: Mover = ProcessMover(backend, ours) if in_process else ThreadMover(backend, ours)
        stack.callback(mover.close)
        line, peer = socket.socketpair()
        stack.enter_context(line)
        stack.enter_context(peer)
        peer.settimeout(SECONDS)
        yield Scene(mover, ours, theirs, theirs_backend, line, peer)


@pytest.mark.parametrize("scene", ["process", "threads"], indirect=True)
def test_a_write_lands_and_is_counted(scene: Scene) -> None:
    counted = scene.theirs_backend.expect(scene.theirs, IMMEDIATE, 2, SECONDS)
    to = scene.open()

    ends = [scene.write(to), scene.write(to)]

    assert [ended.get(timeout=SECONDS) for ended in ends] == [None, None]
    counted.wait(SECONDS)
    assert scene.theirs.memory[8:24] == pattern(16)
    assert not any(scene.theirs.memory[24:])


@pytest.mark.parametrize("scene", ["process", "threads"], indirect=True)
def test_a_write_that_cannot_be_is_an_error_once(scene: Scene) -> None:
    scene.theirs.close()

    ended = scene.write(scene.open())

    assert isinstance(ended.get(timeout=SECONDS), TransferError)
    assert ended.empty()


@pytest.mark.parametrize("scene", ["process", "threads"], indirect=True)
def test_what_is_cancelled_ends_though_its_peer_does_not_answer(scene: Scene) -> None:
    with ExitStack() as stack:
        to_nobody, to = scene.open_to_nobody(stack), scene.open()
        ends = [scene.write(to_nobody) for _ in range(2 * MAX_THREADS)]
        assert all(ended.empty() for ended in ends)

        began = time.monotonic()
        to_nobody.cancel()

        for ended in [*ends, scene.write(to_nobody)]:
            error = ended.get(timeout=SECONDS)
            assert isinstance(error, TransferError)
            assert "cancelled" in str(error)
        # Sooner than anybody gives up by himself.
        assert time.monotonic() - began < links.CONNECT_SECONDS
        assert scene.write(to).get(timeout=SECONDS) is None


@pytest.mark.parametrize("scene", ["process", "threads"], indirect=True)
def test_what_waits_behind_writes_to_a_hung_peer_is_cancelled_at_once(
    scene: Scene, backend: str
) -> None:
    """They have every thread; it has none, so it moves nothing."""
    with ExitStack() as stack:
        hung, to = scene.open_to_nobody(stack), scene.open()
        ends = [scene.write(hung) for _ in range(MAX_THREADS)]
        waits = scene.write(to)

        to.cancel()

        assert "cancelled" in str(waits.get(timeout=links.CONNECT_SECONDS))
        assert all(ended.empty() for ended in ends)
        hung.cancel()


def test_the_peers_connection_ends_only_when_the_mover_lets_go(scene: Scene) -> None:
    """So that its end says that nobody is left who could write."""
    to = scene.open()
    assert scene.write(to).get(timeout=SECONDS) is None
    scene.line.close()
    scene.peer.setblocking(False)
    with pytest.raises(BlockingIOError):
        scene.peer.recv(1)

    to.close()

    scene.peer.settimeout(SECONDS)
    assert scene.peer.recv(1) == b""


def test_a_mover_that_dies_fails_what_it_had_and_is_replaced(scene: Scene) -> None:
    to = scene.open()
    assert scene.write(to).get(timeout=SECONDS) is None
    first = scene.process.pid
    scene.freeze()
    ended = scene.write(to)

    scene.kill()

    assert isinstance(ended.get(timeout=SECONDS), PeerLost)
    assert isinstance(scene.write(to).get(timeout=SECONDS), PeerLost)
    again = scene.open()
    assert scene.write(again).get(timeout=SECONDS) is None
    assert scene.process.pid != first


def test_posting_never_waits_for_a_mover_that_hangs(scene: Scene) -> None:
    """More than its socket holds; they are written when it goes on."""
    to = scene.open()
    scene.freeze()
    many = 5000
    counted = scene.theirs_backend.expect(scene.theirs, IMMEDIATE, many, SECONDS * 3)

    ends = [scene.write(to) for _ in range(many)]

    assert all(ended.empty() for ended in ends)
    scene.thaw()
    counted.wait(SECONDS * 3)
    assert all(ended.get(timeout=SECONDS) is None for ended in ends)


def test_closing_ends_a_mover_that_hangs(scene: Scene) -> None:
    to = scene.open()
    scene.freeze()
    ended = scene.write(to)

    scene.mover.close()

    assert isinstance(ended.get(timeout=SECONDS), PeerLost)
    assert not any(scene.theirs.memory)


def test_a_destination_that_cannot_be_said_leaves_nothing_open(scene: Scene) -> None:
    """Of the peer's connection a copy stayed, whose end it then never saw."""
    right = scene.theirs.descriptor
    too_long = dataclasses.replace(right, address={**right.address, "junk": "x" * 400_000})
    before = len(os.listdir("/proc/self/fd"))

    with pytest.raises(OSError, match="Message too long"):
        scene.mover.open(too_long, scene.line.fileno())

    assert len(os.listdir("/proc/self/fd")) == before
    assert scene.write(scene.open()).get(timeout=SECONDS) is None


def test_a_mover_out_of_descriptors_fails_that_destination_alone(
    memory: tuple[Backend, Region, Backend, Region],
) -> None:
    """The kernel drops the connection that came with the order."""
    backend, ours, _, theirs = memory
    engine, mover = mover_wire.new_pair()
    line, peer = socket.socketpair()
    orders = threading.Thread(target=MoverOrders(mover, backend, ours).serve)
    with engine, mover, line, peer:
        orders.start()
        there = descriptors.as_data(theirs.descriptor)
        engine.send(mover_wire.encode(mover_wire.Open(1, there)))
        opened = mover_wire.encode(mover_wire.Open(2, there))
        socket.send_fds(engine, [opened], [line.fileno()])
        packed = mover_wire.pack([Range(0, 8, 16)])
        ends = {}
        for destination in (1, 2):
            until = time.monotonic() + SECONDS
            write = mover_wire.MoverWrite(destination, destination, packed, until, IMMEDIATE)
            engine.send(mover_wire.encode(write))
            ended = mover_wire.receive_end(engine)
            assert ended is not None
            ends[ended.number] = ended.error
            engine.send(mover_wire.encode(mover_wire.Close(destination)))
        engine.shutdown(socket.SHUT_RDWR)
        orders.join(SECONDS)

    assert "descriptor" in ends[1]
    assert ends[2] == ""


def test_a_process_builds_its_backend_with_the_options_that_ours_names(
    memory: tuple[Backend, Region, Backend, Region], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seen from one that it cannot be built with: Mooncake's and NIXL's show nothing else here."""
    backend, ours, _, theirs = memory
    monkeypatch.setattr(backend, "adopter_options", lambda: {"no_such_option": 1})
    ends: queue.SimpleQueue[Exception | None] = queue.SimpleQueue()
    line, peer = socket.socketpair()

    with line, peer, closing(ProcessMover(backend, ours)) as mover:
        there = mover.open(theirs.descriptor, line.fileno())
        there.write([Range(0, 0, 8)], time.monotonic() + SECONDS, IMMEDIATE, ends.put)

        assert isinstance(ends.get(timeout=SECONDS), PeerLost)


def test_memory_that_cannot_be_shared_is_refused(backend: str) -> None:
    class Private(Region):
        def __init__(self, like: Region) -> None:
            self.memory, self.descriptor = like.memory, like.descriptor

        def close(self) -> None:
            return

    with (
        closing(registry.load(backend)) as ours,
        pytest.raises(TransferError, match="cannot be moved by another process"),
    ):
        ProcessMover(ours, Private(ours.allocate(LENGTH)))
