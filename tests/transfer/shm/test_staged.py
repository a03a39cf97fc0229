"""A window through which its owner moves a device's memory, and transfers that are given up."""

import contextlib
import os
import queue
import secrets
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass

import pytest

from pdgate.transfer.base import Op, Region, State
from pdgate.transfer.device.staging import Ranges
from pdgate.transfer.messenger.mover import when_settled
from pdgate.transfer.runtime.jobs import run
from pdgate.transfer.runtime.regions import LocalMemory
from pdgate.transfer.runtime.running import RunningTransfer
from pdgate.transfer.shm import staged, wire
from pdgate.transfer.shm.backend import ShmBackend
from pdgate.transfer.shm.segment import create
from pdgate.transfer.shm.staged import StagedWindow
from tests.support import waiting

SECONDS = waiting.PATIENCE_SECONDS
SLOT = 1024
SLOTS = 4


@dataclass
class Scene:
    """
    Attributes:
        asked: The owner has been told of a slot.
        go_on: It answers.
        counted: Immediates that it was told.
    """

    window: StagedWindow
    local: Region
    asked: threading.Semaphore
    go_on: threading.Event
    counted: list[int]

    def write(self, immediate: int) -> RunningTransfer:
        """Slot after slot, on a thread."""
        transfer = RunningTransfer(f"write {immediate}")
        pieces = [(n * SLOT, n * SLOT, SLOT) for n in range(SLOTS)]
        local = self.local
        assert isinstance(local, LocalMemory)

        def work(it: RunningTransfer) -> None:
            self.window.move(it, Op.WRITE, local, bytes(16), pieces, immediate)

        threading.Thread(target=run, args=(transfer, work)).start()
        return transfer


@pytest.fixture
def scene() -> Iterator[Scene]:
    ours, theirs = socket.socketpair()
    fd, segment = create(2 * SLOT, secrets.token_bytes(16))
    os.close(fd)
    asked, go_on, counted = threading.Semaphore(0), threading.Event(), list[int]()

    def own() -> None:
        while (move := wire.receive_move(theirs)) is not None:
            asked.release()
            go_on.wait(SECONDS)
            if move.immediate is not None:
                counted.append(move.immediate)
            # Whom it tells may have left.
            with contextlib.suppress(OSError):
                wire.send_moved(theirs, wire.ShmStatus.OK)

    owner = threading.Thread(target=own)
    with closing(ShmBackend()) as backend, theirs:
        owner.start()
        local = backend.allocate(SLOTS * SLOT)
        window = StagedWindow(ours, segment, SLOT)
        with ours:
            yield Scene(window, local, asked, go_on, counted)
        go_on.set()
        owner.join(SECONDS)


def test_one_that_is_given_up_leaves_the_window_to_the_others(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It took theirs down with it."""
    monkeypatch.setattr(staged, "BREAK_OFF_SECONDS", SECONDS)
    given_up = scene.write(1)
    assert scene.asked.acquire(timeout=SECONDS)
    another = scene.write(2)

    given_up.cancel()
    assert not given_up.settled
    scene.go_on.set()

    assert given_up.settle(SECONDS)
    another.wait(SECONDS)
    assert (given_up.state, another.state) == (State.CANCELLED, State.DONE)
    assert scene.counted == [2]


def test_one_that_is_given_up_does_not_wait_for_an_owner_that_does_not_answer(scene: Scene) -> None:
    given_up = scene.write(1)
    assert scene.asked.acquire(timeout=SECONDS)

    given_up.cancel()

    assert given_up.settle(SECONDS)
    assert scene.window.broken
    scene.go_on.set()


def test_one_that_is_given_up_ends_where_no_thread_can_be_started(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its end was told to nobody, and who waits for its pages waited for ever."""
    given_up = scene.write(1)
    told = threading.Event()
    when_settled(given_up, told.set)
    assert scene.asked.acquire(timeout=SECONDS)

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", no_thread)
        given_up.cancel()

    assert told.wait(SECONDS)
    assert given_up.settled
    assert scene.window.broken
    scene.go_on.set()


def no_thread(_: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


def test_one_that_is_given_up_while_our_own_side_is_slow_leaves_the_window_to_the_others(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its owner has answered all that it was asked; the next one heard that it was lost."""
    monkeypatch.setattr(staged, "BREAK_OFF_SECONDS", 0.05)
    scene.go_on.set()
    copying, copied, late = threading.Event(), threading.Event(), threading.Event()
    out, shut_on = staged._HostSlots.out, scene.window._shut_on

    def slow_out(self: staged._HostSlots, batches: Sequence[Ranges]) -> Iterator[memoryview]:
        for number, slot in enumerate(out(self, batches)):
            if number and not copying.is_set():
                copying.set()
                assert copied.wait(SECONDS)
            yield slot

    def shut_on_and_say(transfer: RunningTransfer) -> None:
        shut_on(transfer)
        late.set()

    monkeypatch.setattr(staged._HostSlots, "out", slow_out)
    monkeypatch.setattr(scene.window, "_shut_on", shut_on_and_say)
    given_up = scene.write(1)
    assert copying.wait(SECONDS)
    another = scene.write(2)

    given_up.cancel()
    assert late.wait(SECONDS)
    copied.set()

    another.wait(SECONDS)
    assert given_up.settle(SECONDS)
    assert (given_up.state, another.state) == (State.CANCELLED, State.DONE)
    assert not scene.window.broken
    assert scene.counted == [2]


def test_one_that_was_given_up_in_time_is_not_taken_for_the_next(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whose answer takes longer than the one before may have taken."""
    monkeypatch.setattr(staged, "BREAK_OFF_SECONDS", 0.05)
    given_up = scene.write(1)
    assert scene.asked.acquire(timeout=SECONDS)
    late = scene.window._shut_on
    shut_on: queue.Queue[RunningTransfer] = queue.Queue()

    def shut_on_later(transfer: RunningTransfer) -> None:
        assert given_up.settle(SECONDS)
        late(transfer)
        shut_on.put(transfer)

    monkeypatch.setattr(scene.window, "_shut_on", shut_on_later)
    given_up.cancel()
    scene.go_on.set()
    assert given_up.settle(SECONDS)
    scene.go_on.clear()
    another = scene.write(2)
    assert scene.asked.acquire(timeout=SECONDS)
    assert shut_on.get(timeout=SECONDS) is given_up
    scene.go_on.set()

    another.wait(SECONDS)
    assert not scene.window.broken
