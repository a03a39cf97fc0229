"""Threads and deadlines of transfers, which are started often and seldom have to wait."""

import threading
from collections.abc import Iterator
from contextlib import closing

import pytest

from pdgate.transfer.base import State, TransferError
from pdgate.transfer.runtime.jobs import MAX_THREADS, Threads, TransferJobs, TransferPlan
from pdgate.transfer.runtime.running import SWEEP_AT_LEAST, RunningTransfer, TransferDeadlines
from tests.support import waiting

SECONDS = waiting.PATIENCE_SECONDS


@pytest.fixture
def jobs() -> Iterator[TransferJobs]:
    with closing(TransferJobs("test")) as found:
        yield found


def test_a_thread_is_used_again_when_it_is_free() -> None:
    threads, names, done = Threads("test", 4), [], threading.Semaphore(0)

    def work() -> None:
        names.append(threading.current_thread().name)
        done.release()

    with closing(threads):
        for _ in range(20):
            assert threads.submit(work)
            assert done.acquire(timeout=SECONDS)
            waiting.wait_until(lambda: threads._busy == 0, "a thread that is free after its work")

    assert set(names) == {"test_0"}


def test_work_does_not_wait_while_another_thread_may_start() -> None:
    threads, together = Threads("test", 4), threading.Barrier(5, timeout=SECONDS)

    def meet() -> None:
        together.wait()

    with closing(threads):
        for _ in range(4):
            assert threads.submit(meet)

        together.wait()


def test_work_beyond_the_most_threads_waits_for_one() -> None:
    threads, go_on, done = Threads("test", 1), threading.Event(), threading.Event()
    names: list[str] = []

    def first() -> None:
        assert go_on.wait(SECONDS)

    def second() -> None:
        names.append(threading.current_thread().name)
        done.set()

    with closing(threads):
        threads.submit(first)
        threads.submit(second)
        assert names == []
        go_on.set()
        assert done.wait(SECONDS)

    assert names == ["test_0"]


def test_nothing_is_taken_after_the_end() -> None:
    threads = Threads("test", 1)
    threads.close()

    assert not threads.submit(lambda: None)


def test_what_is_done_at_once_has_ended_when_the_call_returns(jobs: TransferJobs) -> None:
    done_on: list[threading.Thread] = []

    def work(_: RunningTransfer) -> None:
        done_on.append(threading.current_thread())

    transfer = jobs.start("a copy", SECONDS, TransferPlan(work, at_once=True))

    assert done_on == [threading.current_thread()]
    assert transfer.state is State.DONE
    assert transfer.settled


def test_work_that_was_given_up_before_it_began_is_not_begun(jobs: TransferJobs) -> None:
    go_on, worked, full = threading.Event(), threading.Event(), threading.Semaphore(0)

    def hold(_: RunningTransfer) -> None:
        full.release()
        assert go_on.wait(SECONDS)

    held = [jobs.start("a copy", SECONDS, TransferPlan(hold)) for _ in range(MAX_THREADS)]
    for _ in held:
        assert full.acquire(timeout=SECONDS)
    waiting = jobs.start("another", SECONDS, TransferPlan(lambda _: worked.set()))
    waiting.cancel()

    assert waiting.settled
    go_on.set()
    for transfer in held:
        transfer.wait(SECONDS)
    assert not worked.is_set()


def test_what_breaks_at_once_is_an_ended_transfer_too(
    jobs: TransferJobs, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(_: RunningTransfer) -> None:
        raise ZeroDivisionError

    transfer = jobs.start("a copy", SECONDS, TransferPlan(broken, at_once=True))

    with pytest.raises(TransferError, match="a copy broke"):
        transfer.wait(SECONDS)
    assert "ZeroDivisionError" in caplog.text


def test_an_earlier_deadline_is_kept_behind_a_later_one() -> None:
    """The thread sleeps for the later one when the earlier one comes."""
    with closing(TransferDeadlines()) as deadlines:
        late, soon = RunningTransfer("late"), RunningTransfer("soon")
        deadlines.add(late, 60)
        deadlines.add(soon, 0.05)

        with pytest.raises(TransferError, match="soon took too long"):
            soon.wait(SECONDS)
        assert not late.over


def test_an_interrupt_that_breaks_keeps_no_end_from_being_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Nor the next deadline from being kept."""

    def breaks() -> None:
        raise RuntimeError("can't start new thread")

    with closing(TransferDeadlines()) as deadlines:
        late, next_one = RunningTransfer("late"), RunningTransfer("the next one")
        told = threading.Event()
        late.on_interrupt(breaks)
        late.add_done_callback(lambda _: told.set())
        deadlines.add(late, 0.05)

        assert told.wait(SECONDS)
        deadlines.add(next_one, 0.05)
        with pytest.raises(TransferError, match="the next one took too long"):
            next_one.wait(SECONDS)
    assert "could not be interrupted" in caplog.text


def test_deadlines_are_kept_once_there_is_room_for_their_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def no_thread(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with closing(TransferDeadlines()) as deadlines:
        late = RunningTransfer("late")
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", no_thread)
            with pytest.raises(RuntimeError):
                deadlines.add(RunningTransfer("the first one"), 0.05)
        deadlines.add(late, 0.05)

        assert late._ends_within(SECONDS)


def test_a_transfer_without_room_for_a_thread_fails_alone(
    jobs: TransferJobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_thread(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", no_thread)
        failed = jobs.start("a copy", SECONDS, TransferPlan(lambda _: None))
    assert (failed.state, failed.settled) == (State.FAILED, True)
    assert "can't start new thread" in str(failed.error)
    assert not jobs._alive

    jobs.start("a copy", SECONDS, TransferPlan(lambda _: None)).wait(SECONDS)


def test_transfers_that_ended_are_not_kept_until_their_deadline() -> None:
    with closing(TransferDeadlines()) as deadlines:
        # Still under way and next of all, so the thread sleeps.
        deadlines.add(RunningTransfer("first"), 1800)
        for number in range(10 * SWEEP_AT_LEAST):
            transfer = RunningTransfer(str(number))
            deadlines.add(transfer, 3600)
            transfer.leave()

        assert len(deadlines._heap) <= SWEEP_AT_LEAST + 1


def test_many_that_are_under_way_are_all_kept() -> None:
    with closing(TransferDeadlines()) as deadlines:
        running = [RunningTransfer(str(number)) for number in range(2 * SWEEP_AT_LEAST)]
        for transfer in running:
            deadlines.add(transfer, 0.2)

        for transfer in running:
            with pytest.raises(TransferError):
                transfer.wait(SECONDS)
            assert transfer.state is State.TIMED_OUT
