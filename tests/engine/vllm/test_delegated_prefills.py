"""Prefill: what another engine asked us to compute, under two names."""

from typing import Any

import pytest

from pdgate.engine.connector import Keep
from pdgate.engine.vllm.intent import PREFILL_ID
from pdgate.engine.vllm.orders import Evict, Hold, Progress
from tests.engine.vllm.worker_rig import BLOCKS, LEASE_SECONDS, Rig, asked, kept


def test_a_delegated_prefill_is_known_to_its_peer_by_its_own_name(rig: Rig) -> None:
    rig.worker.submit_prefill("kvt-1", range(10), 9, Keep(LEASE_SECONDS))
    assert rig.calls.started == [("kvt-1", range(9))]

    rig.obey(Hold(asked("p1", **{PREFILL_ID: "kvt-1"})), kept())

    assert rig.said("kept") == [("kvt-1", BLOCKS, 10, "length")]
    rig.worker.release("kvt-1")
    assert rig.results().sent == {"p1"}


def test_a_delegated_prefill_that_fails_refuses_who_waits_for_it(rig: Rig) -> None:
    rig.worker.submit_prefill("kvt-1", range(10), 9, Keep(LEASE_SECONDS))

    rig.calls.failed("kvt-1", "our own API answered 503")

    assert rig.said("dropped") == [("kvt-1",)]
    # And if the request reached vLLM all the same, nobody may have its pages.
    rig.obey(Hold(asked("p1", **{PREFILL_ID: "kvt-1"})), kept())
    assert rig.results().sent == {"p1"}
    assert rig.said("kept") == []


def test_a_peer_that_gives_up_ends_the_prefill_that_it_asked_for(rig: Rig) -> None:
    rig.worker.submit_prefill("kvt-1", range(10), 9, Keep(LEASE_SECONDS))

    rig.worker.abort("kvt-1")

    assert rig.calls.cancelled == ["kvt-1"]


def test_an_engine_that_cannot_prefill_says_so(rig: Rig) -> None:
    rig.calls.refuses = True

    with pytest.raises(ValueError, match="no API"):
        rig.worker.submit_prefill("kvt-1", range(10), 9, Keep(LEASE_SECONDS))

    rig.obey(Hold(asked("p1", **{PREFILL_ID: "kvt-1"})), kept())
    assert rig.said("kept") == []


@pytest.mark.parametrize("name", ["kvt-unknown", 7])
def test_nobody_takes_a_prefill_that_was_not_asked_for(name: Any, rig: Rig) -> None:
    """The field is a client's to forge; then its blocks are of no use to anybody."""
    rig.obey(Hold(asked("p1", **{PREFILL_ID: name})), kept())

    assert rig.said("kept") == []
    assert rig.results().sent == {"p1"}


def test_one_delegated_prefill_serves_one_request(rig: Rig) -> None:
    rig.worker.submit_prefill("kvt-1", range(10), 9, Keep(LEASE_SECONDS))
    params = {PREFILL_ID: "kvt-1"}

    rig.obey(Hold(asked("p1", **params)), Hold(asked("p2", **params)), kept("p2"), kept("p1"))

    assert rig.said("kept") == [("kvt-1", BLOCKS, 10, "length")]
    assert rig.results().sent == {"p2"}


def test_each_layer_of_a_held_prefill_is_told(rig: Rig) -> None:
    rig.worker.submit_prefill("kvt-1", range(10), 9, Keep(LEASE_SECONDS))
    step = Progress("p1", (5, 6), 8)
    rig.obey(Hold(asked("p1", **{PREFILL_ID: "kvt-1"})), step)

    rig.worker.computed(0)
    rig.worker.computed(1)
    rig.obey()
    rig.worker.computed(0)

    assert rig.said("computed") == [("kvt-1", layer, (5, 6), 8) for layer in (0, 1)]


def test_a_preempted_prefill_is_not_wanted_any_more(rig: Rig) -> None:
    rig.worker.submit_prefill("kvt-1", range(10), 9, Keep(LEASE_SECONDS))
    rig.obey(Hold(asked("p1", **{PREFILL_ID: "kvt-1"})))

    rig.obey(Evict("p1"))

    assert rig.calls.cancelled == ["kvt-1"]
    assert rig.said("dropped") == [("kvt-1",)]
