"""A decode engine that is killed, frozen or restarted, as a real process, at every state.

P has its pages back, all of them and once, and not while anything of theirs is under way.
"""

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from pdgate.transfer.messenger import service
from pdgate.transfer.messenger.offers import Offer
from tests.support.kv_layouts import PLAIN
from tests.transfer.messenger.node_process import NodeProcess
from tests.transfer.messenger.nodes import SECONDS
from tests.transfer.messenger.watched import Prefill

pytestmark = pytest.mark.slow

TOKENS = 10
LAYERS = range(PLAIN.layers)


@pytest.fixture
def prefill(backend: str) -> Iterator[Prefill]:
    with closing(Prefill(backend, PLAIN)) as node:
        yield node


@pytest.fixture
def decode(backend: str) -> Iterator[NodeProcess]:
    with NodeProcess(backend) as process:
        yield process


def test_before_prefill_knows_the_key_its_pages_wait_for_somebody_else(
    prefill: Prefill, decode: NodeProcess, backend: str
) -> None:
    decode.do("load", "k", prefill.port, TOKENS, "push")
    prefill.until("asked")
    decode.kill()

    with NodeProcess(backend) as another:
        # The dead one's push has to be gone, which nothing but a refusal tells.
        while "taken key" in (end := _load(another, prefill)):
            pass
        assert end == "well"
    assert prefill.freed.get(timeout=SECONDS) == "k"
    assert prefill.used == 0


def _load(decode: NodeProcess, prefill: Prefill) -> str:
    if "k" not in prefill.blocks:
        prefill.expect("k", TOKENS)
        prefill.kept("k", TOKENS)
    decode.do("load", "k", prefill.port, TOKENS, "push")
    return decode.do("result")


@pytest.mark.parametrize("layers", [0, 1])
def test_while_it_is_written_to_its_prefill_is_aborted(
    prefill: Prefill, decode: NodeProcess, layers: int
) -> None:
    prefill.expect("k", TOKENS)
    decode.do("load", "k", prefill.port, TOKENS, "push")
    prefill.until("begun")
    prefill.computed("k", TOKENS, LAYERS[:layers])
    decode.kill()

    assert prefill.aborted.get(timeout=SECONDS) == "k"
    prefill.pushes.computed("k", LAYERS[-1], [0, 1, 2], TOKENS)
    assert prefill.used == 0
    assert prefill.counters.sends_failed == 1


def test_after_its_last_page_it_is_not_missed(prefill: Prefill, decode: NodeProcess) -> None:
    prefill.expect("k", TOKENS)
    decode.do("load", "k", prefill.port, TOKENS, "push")
    prefill.computed("k", TOKENS)
    prefill.kept("k", TOKENS)
    assert decode.do("result") == "well"
    decode.kill()

    assert prefill.freed.get(timeout=SECONDS) == "k"
    assert (prefill.used, prefill.counters.sent) == (0, 1)


@pytest.mark.parametrize("mode", ["push", "pull"])
def test_a_frozen_one_is_found_by_its_silence(
    backend: str, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it said about its time limits what it may hold, and its word is no longer taken."""
    monkeypatch.setattr(service, "SILENCE_SECONDS", 0.3)
    monkeypatch.setattr(service, "READ_MARGIN_SECONDS", 0.1)
    with (
        closing(Prefill(backend, PLAIN)) as prefill,
        NodeProcess(backend, lease_seconds=0.5) as decode,
    ):
        prefill.expect("k", TOKENS)
        if mode == "pull":
            # Nothing but a held read keeps it from being through too soon to be frozen, and its
            # silence begins after it.
            lend = prefill.offers.wait
            dropped: list[tuple[bool, int]] = []

            def lend_and_freeze(*words: Any) -> Offer:
                offer = lend(*words)
                decode.freeze()
                # Its lease is over, so that the pages go when the reader does.
                in_use = prefill.offers.drop("k", "the lease is over").in_use
                dropped.append((in_use, prefill.counters.lingering))
                return offer

            prefill.offers.wait = lend_and_freeze  # type: ignore[method-assign, assignment]
            prefill.kept("k", TOKENS)
            decode.say("load", "k", prefill.port, TOKENS, mode)
            assert prefill.freed.get(timeout=SECONDS) == "k"
            assert dropped == [(True, 3)]
        else:
            blocks = prefill.blocks["k"]
            decode.say("load", "k", prefill.port, TOKENS, mode)
            prefill.until("begun")
            decode.freeze()
            # Its silence may be too long already, and the blocks not the request's any more.
            prefill.pushes.computed("k", 0, blocks, TOKENS)
            assert prefill.aborted.get(timeout=SECONDS) == "k"

        assert (prefill.used, prefill.counters.lingering) == (0, 0)
        assert prefill.counters.sends_failed == 1

        decode.thaw()
        assert decode.answer() == "done"
        assert decode.do("result") != "well"
        assert decode.do("used") == "0"


def test_what_is_written_to_a_silent_one_does_not_last_as_long_as_it_had_asked_for(
    backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "SILENCE_SECONDS", 0.3)
    with (
        closing(Prefill(backend, PLAIN)) as prefill,
        NodeProcess(backend, lease_seconds=100 * SECONDS) as decode,
    ):
        # A connection that stays, so that nothing but its end wakes who writes.
        prefill.expect("before", TOKENS)
        prefill.kept("before", TOKENS)
        decode.do("load", "before", prefill.port, TOKENS, "push")
        prefill.until("begun")
        assert decode.do("result") == "well"
        prefill.expect("k", TOKENS)
        blocks = prefill.blocks["k"]
        decode.say("load", "k", prefill.port, TOKENS, "push")
        prefill.until("begun")
        decode.freeze()
        prefill.pushes.computed("k", 0, blocks, TOKENS)

        assert prefill.aborted.get(timeout=SECONDS) == "k"


def test_another_life_at_the_same_address_gets_pages_of_its_own(
    prefill: Prefill, decode: NodeProcess, backend: str
) -> None:
    prefill.expect("k", TOKENS)
    decode.do("load", "k", prefill.port, TOKENS, "push")
    prefill.until("begun")
    prefill.computed("k", TOKENS, [0])
    decode.kill()
    assert prefill.aborted.get(timeout=SECONDS) == "k"

    with NodeProcess(backend, decode.port) as second:
        second.do("load", "k", prefill.port, TOKENS, "push")
        assert second.do("result").startswith("expired")
        prefill.expect("k2", TOKENS)
        second.do("load", "k2", prefill.port, TOKENS, "push")
        prefill.computed("k2", TOKENS)
        prefill.kept("k2", TOKENS)
        assert second.do("result") == "well"
    assert prefill.freed.get(timeout=SECONDS) == "k2"
    assert prefill.used == 0
