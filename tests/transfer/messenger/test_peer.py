"""What D asks for at once is answered within a time, whoever answers."""

import time
from contextlib import suppress

import pytest

from pdgate.transfer.messenger import messages, peer
from pdgate.transfer.messenger.errors import HandOverError, Why
from pdgate.transfer.messenger.peer import Peer
from pdgate.transfer.runtime.channel import Channel
from pdgate.transfer.runtime.fleet import Identity
from tests.support import waiting
from tests.support.proven import listening

SECONDS = waiting.PATIENCE_SECONDS


def drip(channel: Channel) -> None:
    """Of an answer of 4 KiB, which is never whole."""
    messages.receive(channel)
    channel.sock.sendall(b"\0\0\x10\0")
    until = time.monotonic() + SECONDS / 4
    with suppress(OSError):
        while time.monotonic() < until:
            channel.sock.sendall(b"x")
            time.sleep(0.05)


def test_an_answer_has_to_be_whole_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer, "ANSWER_SECONDS", 0.3)
    with (
        listening(messages.PURPOSE, drip) as port,
        Peer(("127.0.0.1", port), "", time.monotonic() + SECONDS, Identity()) as other,
        pytest.raises(HandOverError, match="timed out") as found,
    ):
        other.abandon("k")

    assert found.value.why is Why.BROKEN
