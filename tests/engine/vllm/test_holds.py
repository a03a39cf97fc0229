"""Prefill: blocks are held for a reader, and go back when nobody is in them."""

import threading

import pytest

from pdgate.engine.connector import Keep
from pdgate.engine.vllm.orders import Drop, Evict, Hold
from pdgate.engine.vllm.reports import NOTHING
from tests.engine.vllm.worker_rig import BLOCKS, LEASE_SECONDS, Rig, asked, kept
from tests.support.waiting import PATIENCE_SECONDS, wait_until


def hold_and_reader(rig: Rig) -> None:
    """A prefill whose pages a peer is in the middle of."""
    rig.plan("p1", Keep(LEASE_SECONDS))
    rig.obey(Hold(asked("p1")))
    rig.connector.in_use = True


def test_kept_blocks_are_reported_when_their_reader_is_done(rig: Rig) -> None:
    rig.plan("p1", Keep(LEASE_SECONDS))
    rig.obey(Hold(asked("p1")))
    rig.obey(kept())
    assert rig.said("kept") == [("p1", BLOCKS, 10, "length")]
    assert rig.worker.held_blocks == 3
    assert rig.results() is NOTHING

    rig.worker.release("p1")

    assert rig.results().sent == {"p1"}
    assert rig.worker.held_blocks == 0


def test_kept_blocks_go_back_when_their_lease_ends(rig: Rig) -> None:
    rig.plan("p1", Keep(LEASE_SECONDS))
    rig.obey(Hold(asked("p1")), kept())
    rig.now = LEASE_SECONDS - 0.1
    assert rig.results() is NOTHING

    rig.now = LEASE_SECONDS

    assert rig.results().sent == {"p1"}
    assert rig.said("dropped") == [("p1",)]
    rig.worker.release("p1")
    assert rig.results() is NOTHING


@pytest.mark.parametrize("plan", [ValueError("no id"), None], ids=repr)
def test_what_is_not_held_goes_back_at_once(plan: Exception | None, rig: Rig) -> None:
    """vLLM keeps the blocks until it is told otherwise."""
    rig.plan("p1", plan)

    rig.obey(Hold(asked("p1")), kept())

    assert rig.results().sent == {"p1"}
    assert rig.said("kept") == []


def test_blocks_that_could_not_be_offered_go_back(rig: Rig) -> None:
    rig.plan("p1", Keep(LEASE_SECONDS))
    rig.connector.breaks_at = "kept"

    rig.obey(Hold(asked("p1")), kept())

    assert rig.said("dropped") == [("p1",)]
    assert rig.results().sent == {"p1"}
    assert rig.worker.held_blocks == 0


def test_an_aborted_prefill_refuses_its_readers(rig: Rig) -> None:
    rig.plan("p1", Keep(LEASE_SECONDS))

    rig.obey(Hold(asked("p1")), Drop("p1", "aborted"))

    assert rig.said("dropped") == [("p1",)]
    assert rig.results().sent == {"p1"}


@pytest.mark.parametrize("end", ["aborted", "lease", "not offered"])
def test_blocks_that_a_peer_is_reading_wait_for_it(end: str, rig: Rig) -> None:
    hold_and_reader(rig)
    match end:
        case "aborted":
            rig.obey(Drop("p1", "aborted"))
        case "lease":
            rig.obey(kept())
            rig.now = LEASE_SECONDS
        case "not offered":
            rig.connector.breaks_at = "kept"
            rig.obey(kept())
    assert rig.results() is NOTHING
    assert rig.said("dropped") == [("p1",)]
    assert rig.said("break off") == []

    rig.worker.release("p1")

    assert rig.results().sent == {"p1"}


def test_where_the_connector_cannot_drop_one_the_others_go_back(rig: Rig) -> None:
    """They were never reported, and whoever preempted one of them waited for ever."""
    for request_id in ("p1", "p2", "p3"):
        rig.plan(request_id, Keep(LEASE_SECONDS))
        rig.obey(Hold(asked(request_id)), kept(request_id))
    rig.connector.breaks_at = "dropped"
    rig.now = LEASE_SECONDS

    assert rig.results().sent == {"p1", "p2", "p3"}
    assert rig.said("dropped") == [("p1",), ("p2",), ("p3",)]


def test_a_step_goes_on_that_preempts_what_the_connector_cannot_drop(rig: Rig) -> None:
    """vLLM sends the order twice; at the second one the step waited for a reader that never was."""
    rig.plan("p1", Keep(LEASE_SECONDS))
    rig.obey(Hold(asked("p1")))
    rig.connector.breaks_at = "dropped"

    rig.worker.evict([Evict("p1")])
    rig.worker.evict([Evict("p1")])

    rig.obey(kept())
    assert rig.results().sent == {"p1"}


@pytest.mark.parametrize("breaks_at", ["", "break off"])
def test_the_step_that_preempts_waits_for_the_reader(breaks_at: str, rig: Rig) -> None:
    """Otherwise the reader gets the bytes of another request, and takes them for right."""
    hold_and_reader(rig)
    rig.connector.breaks_at = breaks_at
    waited = threading.Thread(target=rig.worker.evict, args=([Evict("p1")],))
    waited.start()
    wait_until(lambda: rig.said("break off") == [("p1",)], "the end of what moves")
    assert waited.is_alive()

    rig.worker.release("p1")

    waited.join(PATIENCE_SECONDS)
    assert not waited.is_alive()
    # It is computed again, for nobody.
    rig.obey(kept())
    assert rig.results().sent == {"p1"}
    assert rig.said("kept") == []
