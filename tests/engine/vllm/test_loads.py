"""Decode: each load that was ordered is started, and reported once."""

import pytest

from pdgate.engine.connector import Keep, Load
from pdgate.engine.vllm.orders import CancelOrder, LetGo, RefuseOrder
from pdgate.engine.vllm.reports import NOTHING, Results
from tests.engine.vllm.worker_rig import BLOCK_TOKENS, BLOCKS, Rig, asked, fetch


@pytest.mark.parametrize("error", [None, "broken peer"])
def test_a_load_is_started_and_its_end_reported(error: str | None, rig: Rig) -> None:
    rig.plan("d1", Load(9, "ticket"))
    rig.obey(fetch(skip=4))
    assert rig.said("start") == [("d1", BLOCKS, 4)]
    assert rig.results() is NOTHING

    rig.now = 2.0
    rig.worker.loaded("d1", error)

    ended = rig.results()
    assert ended.received == {"d1"}
    assert ended.failed == ({"d1"} if error else set())
    assert rig.worker.load_seconds == 2.0


@pytest.mark.parametrize(
    "plan", [ValueError("remote_port"), None, Load(5, ""), Keep(1.0), KeyError("bug")], ids=repr
)
def test_a_request_that_makes_no_sense_fails_alone(
    plan: Load | Keep | Exception | None, rig: Rig
) -> None:
    rig.plan("d1", plan)
    rig.plan("d2", Load(9, ""))

    rig.obey(fetch(), fetch("d2"))

    assert rig.results() == Results(frozenset(), frozenset({"d1"}), frozenset({"d1"}))
    assert rig.said("start") == [("d2", BLOCKS, 0)]
    assert rig.connector.counters.failed == 1


def test_a_load_that_breaks_at_its_start_is_reported_once(rig: Rig) -> None:
    rig.plan("d1", Load(9, ""))
    rig.connector.breaks_at = "start"

    rig.obey(fetch())
    rig.worker.loaded("d1")

    assert rig.results().failed == {"d1"}
    assert rig.results() is NOTHING


def test_an_order_that_breaks_does_not_stop_the_next(rig: Rig) -> None:
    rig.plan("d2", Load(9, ""))
    rig.connector.breaks_at = "cancel"

    rig.obey(CancelOrder("d1"), fetch("d2"))

    assert rig.said("start") == [("d2", BLOCKS, 0)]


def test_what_could_not_be_ordered_is_a_failed_load(rig: Rig) -> None:
    rig.obey(RefuseOrder("d1", "a bug"))

    assert rig.results().failed == {"d1"}


def test_a_peer_whose_pages_are_not_needed_is_told(rig: Rig) -> None:
    rig.plan("d1", Load(9, ""))
    rig.obey(LetGo(asked("d1")))

    assert rig.said("start") == [("d1", (), 9)]
    rig.worker.loaded("d1")
    assert rig.results() is NOTHING


def test_a_load_that_will_not_succeed_fails_before_its_blocks_are_free(rig: Rig) -> None:
    rig.plan("d1", Load(9, ""))
    rig.obey(fetch())

    rig.worker.gave_up("d1", "silent peer")

    early = rig.results()
    assert (early.failed, early.received) == (frozenset({"d1"}), frozenset())
    assert early.invalid == set(BLOCKS)
    rig.worker.loaded("d1", "silent peer")
    assert rig.results().received == {"d1"}
    assert rig.results() is NOTHING


def test_blocks_that_others_share_are_not_called_invalid(rig: Rig) -> None:
    """vLLM would fail, or compute again, whoever else has them."""
    rig.plan("d1", Load(9, ""))
    rig.obey(fetch(skip=BLOCK_TOKENS))

    rig.worker.gave_up("d1", "silent peer")

    assert rig.results().invalid == set(BLOCKS[1:])
