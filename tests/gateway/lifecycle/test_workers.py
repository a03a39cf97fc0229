"""The parent of workers outlives its own bugs, and its workers never outlive it."""

import signal
from collections.abc import Iterator
from time import monotonic
from typing import Any

import pytest

from pdgate.gateway.config import Settings
from pdgate.gateway.lifecycle.workers import One, Workers


@pytest.fixture(autouse=True)
def signals_as_they_were() -> Iterator[None]:
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    before = [signal.getsignal(number) for number in numbers]
    yield
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


class Process:
    """Of a worker that lives until it is killed."""

    def __init__(self) -> None:
        self.pid = None
        self.exitcode: int | None = None

    def is_alive(self) -> bool:
        return self.exitcode is None

    def kill(self) -> None:
        self.exitcode = -signal.SIGKILL

    def join(self, seconds: float) -> None: ...


def parent_of(monkeypatch: pytest.MonkeyPatch, *workers: Process) -> Workers:
    """With these workers, and without their processes."""

    def never(*_: Any) -> None:
        raise AssertionError

    parent = Workers(never, [], Settings(), Settings)
    monkeypatch.setattr(parent, "_begin", lambda place: None)
    for place, process in enumerate(workers):
        found: Any = process
        parent._workers[place] = One(place, found, began=0.0)
    return parent


def test_a_bug_over_one_event_ends_no_parent(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    parent = parent_of(monkeypatch)

    def fails(*_: Any) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(parent, "_reload", fails)
    parent._events.put((None, (signal.SIGHUP,)))
    parent._events.put((None, (signal.SIGTERM,)))

    assert parent.run() == 0
    assert "a bug" in caplog.text


def test_what_ends_the_parent_ends_its_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python would wait for them, with the port taken and nothing that replaces them."""
    worker = Process()
    parent = parent_of(monkeypatch, worker)

    def ends(*_: Any) -> None:
        raise SystemExit(1)

    monkeypatch.setattr(parent, "_reload", ends)
    parent._events.put((None, (signal.SIGHUP,)))

    with pytest.raises(SystemExit):
        parent.run()
    assert not worker.is_alive()


def test_signals_without_end_do_not_keep_the_parent_from_its_clock(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A reload each quarter of a second left frozen and dead workers as they were."""
    dead = Process()
    dead.kill()
    parent = parent_of(monkeypatch, dead)
    until = monotonic() + 10

    def asked_again(*_: Any) -> None:
        if monotonic() > until:
            raise SystemExit("nobody has looked at the worker")
        parent._events.put((None, (signal.SIGHUP,)))

    monkeypatch.setattr(parent, "_reload", asked_again)
    parent._events.put((None, (signal.SIGHUP,)))

    # None has ever been ready, so all end.
    assert parent.run() == 1
