"""Both sides say what they have done, and what is left of it now."""

import threading
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from pdgate.transfer.messenger.counters import MessengerCounters, Readings
from pdgate.transfer.messenger.peer import Peer
from pdgate.transfer.runtime.fleet import Identity
from tests.support.kv_layouts import PLAIN
from tests.transfer.messenger.nodes import SECONDS, Node

TOKENS = 10
BLOCKS = 3
FAR = float("inf")
MODES: dict[str, dict[str, Any]] = {"pull": {"push": False}, "push": {}}


@pytest.fixture
def prefill() -> Iterator[Node]:
    with closing(Node("shm", PLAIN)) as node:
        yield node


@pytest.fixture
def decode() -> Iterator[Node]:
    with closing(Node("shm", PLAIN)) as node:
        yield node


@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
def test_a_hand_over_is_counted_on_both_sides(
    prefill: Node, decode: Node, mode: dict[str, Any]
) -> None:
    prefill.expect("k", TOKENS)
    prefill.kept("k", TOKENS)
    decode.load("k", prefill.port, TOKENS, skip=1, **mode)
    assert decode.result() is None
    assert prefill.freed.get(timeout=SECONDS) == "k"

    moved = decode.shape.bytes_of(2 * PLAIN.block_tokens)
    ours, theirs = decode.counters, prefill.counters
    assert (ours.transfers, ours.failed, ours.bytes_moved) == (1, 0, moved)
    assert (theirs.sent, theirs.sends_failed, theirs.bytes_sent) == (1, 0, moved)
    assert ours.seconds > 0
    assert theirs.seconds_sending > 0


def test_a_failed_load_takes_time_and_moves_nothing(prefill: Node, decode: Node) -> None:
    decode.load("k", prefill.port, TOKENS, push=False, wait_seconds=0.05)

    assert decode.result() is not None
    counters = decode.counters
    assert (counters.transfers, counters.failed, counters.bytes_moved) == (0, 1, 0)
    assert counters.seconds >= 0.05


def test_pages_that_only_their_reader_keeps_are_lingering(prefill: Node) -> None:
    """Until it is done, or gone."""
    for key in ("k1", "k2"):
        prefill.expect(key, TOKENS)
        prefill.kept(key, TOKENS)
    with Peer(("127.0.0.1", prefill.port), "", FAR, Identity()) as first:
        offer = first.ask("k1", 0.0, SECONDS, prefill.shape)
        with Peer(("127.0.0.1", prefill.port), "", FAR, Identity()) as second:
            second.ask("k2", 0.0, SECONDS, prefill.shape)
            for key in ("k1", "k2", "k2"):
                assert prefill.offers.drop(key, "the lease is over").in_use
            assert prefill.counters.lingering == 2 * BLOCKS

            assert first.release("k1", offer.offer_id, 1 << 60)
            assert prefill.counters.lingering == BLOCKS

        assert prefill.freed.get(timeout=SECONDS) == "k1"
        assert prefill.freed.get(timeout=SECONDS) == "k2"
    counters = prefill.counters
    assert (counters.lingering, counters.sent, counters.sends_failed) == (0, 1, 1)
    # A reader's word is taken only as far as it can be true.
    assert counters.bytes_sent == prefill.shape.bytes_of(BLOCKS * PLAIN.block_tokens)


def test_a_release_of_what_was_never_lent_counts_nothing() -> None:
    counters = MessengerCounters()
    readings = Readings(counters)

    readings.ended("guessed", held=True, bytes_read=5)

    assert (counters.sent, counters.bytes_sent, counters.sends_failed) == (0, 0, 0)


def test_threads_that_count_at_once_lose_nothing() -> None:
    counters = MessengerCounters()
    other = threading.Thread(target=lambda: counters.add(sent=1))

    class Interrupted(int):
        """Lets the other thread count between what is read and what is written."""

        def __radd__(self, count: int) -> int:
            other.start()
            other.join(0.05)
            return count + int(self)

    counters.add(sent=Interrupted(1))
    other.join()

    assert counters.sent == 2
