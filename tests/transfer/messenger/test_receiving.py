"""What D waits for, and for how long."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdgate.transfer.messenger.errors import HandOverError, Why
from pdgate.transfer.messenger.receiving import Patience, Phase, Receiving, Say

PATIENCE = Patience(ping=2, silence=10, stop=5)
DEAD = HandOverError(Why.BROKEN, "the peer is gone")
ABORTED = HandOverError(Why.CANCELLED, "nobody waits")


def machine() -> Receiving:
    return Receiving(now=0.0, meet_by=30.0, land_by=60.0, patience=PATIENCE)


def kept_alive(receiving: Receiving, until: float) -> Say | None:
    """The peer answers everything."""
    said = None
    while receiving.wake_at <= until:
        now = receiving.wake_at
        said = receiving.tick(now)
        receiving.heard(now)
        if receiving.phase not in (Phase.ASKING, Phase.WRITING):
            break
    return said


def test_all_landed_is_the_end() -> None:
    receiving = machine()
    receiving.met()

    receiving.landed()

    assert receiving.over
    assert receiving.error is None


def test_a_key_that_nobody_comes_to_know_ends_in_unknown() -> None:
    receiving = machine()

    assert kept_alive(receiving, 31) is Say.CANCEL

    assert receiving.phase is Phase.STOPPING
    assert receiving.error is not None
    assert receiving.error.why is Why.UNKNOWN


def test_pages_that_do_not_come_end_in_too_late() -> None:
    receiving = machine()
    receiving.met()

    assert kept_alive(receiving, 61) is Say.CANCEL

    assert receiving.error is not None
    assert receiving.error.why is Why.TOO_LATE


def test_a_peer_that_answers_no_ping_is_held_for_dead() -> None:
    receiving = machine()
    said = []
    while receiving.phase is Phase.ASKING:
        said.append(receiving.tick(receiving.wake_at))

    assert said == [Say.PING] * 4 + [Say.CANCEL]
    assert receiving.error is not None
    assert receiving.error.why is Why.SILENT
    # A call waits for this, and the peer will not confirm that it stops.
    assert receiving.phase is Phase.ADRIFT
    receiving.gone(DEAD)
    assert receiving.over


def test_a_cancel_that_is_not_confirmed_sets_the_pages_adrift() -> None:
    receiving = machine()
    assert receiving.give_up(1.0, ABORTED) is Say.CANCEL
    assert receiving.wake_at == 6.0

    receiving.tick(6.0)

    assert receiving.phase is Phase.ADRIFT
    assert receiving.wake_at == float("inf")
    receiving.gone(DEAD)
    assert receiving.over
    assert receiving.error is ABORTED


@pytest.mark.parametrize("phase", [Phase.STOPPING, Phase.ADRIFT])
def test_what_lands_after_giving_up_is_still_a_failure(phase: Phase) -> None:
    """But the pages are clean: all that could be written has been."""
    receiving = machine()
    receiving.give_up(0.0, ABORTED)
    if phase is Phase.ADRIFT:
        receiving.tick(5.0)
    assert receiving.phase is phase

    receiving.landed()

    assert receiving.over
    assert receiving.error is ABORTED


events = st.sampled_from(["met", "landed", "gone", "give up", "heard", "tick"])


@given(st.lists(st.tuples(events, st.floats(0, 5)), max_size=60))
def test_it_is_over_only_for_a_reason_and_never_waits_for_nothing(
    happens: list[tuple[str, float]],
) -> None:
    receiving, now, quiet = machine(), 0.0, False
    for what, later in happens:
        now += later
        match what:
            case "met":
                receiving.met()
            case "landed":
                receiving.landed()
                quiet = True
            case "gone":
                receiving.gone(DEAD)
                quiet = True
            case "give up":
                receiving.give_up(now, ABORTED)
            case "heard":
                receiving.heard(now)
            case _:
                receiving.tick(now)
        assert receiving.over == quiet
        if quiet:
            return
        assert receiving.wake_at < float("inf") or receiving.phase is Phase.ADRIFT
        assert (receiving.error is None) == (receiving.phase in (Phase.ASKING, Phase.WRITING))
