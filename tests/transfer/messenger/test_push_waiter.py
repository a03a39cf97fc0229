"""D's end of a push hears the clock and a cancellation, however P's words are spread."""

import threading
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest

from pdgate.transfer.base import Transfer
from pdgate.transfer.messenger import messages, push_waiter
from pdgate.transfer.messenger.errors import HandOverError, Why
from pdgate.transfer.messenger.push_waiter import Waiting
from pdgate.transfer.messenger.receiving import Patience, Receiving
from pdgate.transfer.messenger.shape import PageShape
from pdgate.transfer.runtime.channel import Channel
from tests.support import waiting
from tests.support.proven import pair

SECONDS = waiting.PATIENCE_SECONDS
HALF = b"\0\0\x10\0"
"""The beginning of a message of 4 KiB."""


def nothing(shape: PageShape, context: bool) -> Transfer:
    raise AssertionError("nothing is written here")


class Push:
    """One that waits, on a thread of its own, for a peer that the test speaks for."""

    def __init__(self, ours: Channel, patience: Patience) -> None:
        self.adrift = threading.Event()
        self.error: HandOverError | None = None
        now = time.monotonic()
        machine = Receiving(now, now + SECONDS, now + SECONDS, patience)
        self.waiting = Waiting(ours, machine, lambda _: self.adrift.set(), lambda: False, nothing)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.waiting.run()
        except HandOverError as error:
            self.error = error

    def join(self) -> HandOverError | None:
        self._thread.join(SECONDS)
        assert not self._thread.is_alive()
        self.waiting.close()
        return self.error


@pytest.fixture
def ends() -> Iterator[tuple[Channel, Channel]]:
    ours, theirs = pair()
    theirs.sock.settimeout(SECONDS)
    with ours, theirs:
        yield ours, theirs


def test_a_peer_that_drips_does_not_keep_a_cancel_from_being_said(
    ends: tuple[Channel, Channel],
) -> None:
    """Nor its load from being given up, and its pages from being free when it is gone."""
    ours, theirs = ends
    push, enough = Push(ours, Patience(ping=SECONDS, stop=0.1)), threading.Event()

    def drip() -> None:
        with suppress(OSError):
            while not enough.wait(0.05):
                theirs.sock.sendall(b"x")

    theirs.sock.sendall(HALF)
    dripping = threading.Thread(target=drip)
    dripping.start()

    push.waiting.cancel()

    assert messages.receive(theirs) == messages.Cancel()
    assert push.adrift.wait(SECONDS)
    enough.set()
    dripping.join()
    theirs.close()
    error = push.join()
    assert error is not None
    assert error.why is Why.CANCELLED


def test_a_message_has_to_be_whole_in_time(
    ends: tuple[Channel, Channel], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(push_waiter, "MESSAGE_SECONDS", 0.2)
    ours, theirs = ends
    push = Push(ours, Patience(ping=SECONDS, silence=SECONDS, stop=0.1))

    theirs.sock.sendall(HALF)

    assert push.adrift.wait(SECONDS)
    theirs.close()
    error = push.join()
    assert error is not None
    assert "half a message" in error.message


@pytest.mark.parametrize("cut", [1, 3, 20])
def test_a_message_in_pieces_is_heard(cut: int, ends: tuple[Channel, Channel]) -> None:
    ours, theirs = ends
    push = Push(ours, Patience())
    said = messages.frame(theirs, messages.Pong())
    said += messages.frame(theirs, messages.Failed(Why.EXPIRED, "its lease is over"))

    for at in range(0, len(said), cut):
        theirs.sock.sendall(said[at : at + cut])
        time.sleep(0.002)

    error = push.join()
    assert error is not None
    assert (error.why, error.message) == (Why.EXPIRED, "its lease is over")
