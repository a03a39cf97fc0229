import pytest

from pdgate.transfer.base import PeerLost, State, TransferError
from pdgate.transfer.runtime.running import RunningTransfer
from pdgate.transfer.together import Together


def parts(count: int = 3) -> list[RunningTransfer]:
    return [RunningTransfer(f"part {number}") for number in range(count)]


def ended(transfer: Together) -> list[State]:
    """Filled when the whole ends, and once."""
    states: list[State] = []
    transfer.add_done_callback(lambda one: states.append(one.state))
    return states


def test_done_when_all_are() -> None:
    some = parts()
    states = ended(whole := Together("all", some))

    some[2].leave()
    some[0].leave()
    assert states == []
    some[1].leave()

    assert states == [State.DONE]
    assert whole.settled
    whole.wait(0)


def test_nothing_to_do_is_done() -> None:
    whole = Together("all", [])

    assert (whole.state, whole.settled) == (State.DONE, True)


def test_one_that_fails_ends_the_whole_with_its_error_and_cancels_the_rest() -> None:
    some = parts()
    states = ended(whole := Together("all", some))

    some[0].leave()
    some[1].leave(PeerLost("gone"))

    assert states == [State.FAILED]
    assert some[2].state is State.CANCELLED
    with pytest.raises(PeerLost, match="gone"):
        whole.wait(0)


def test_a_part_that_ended_before_counts() -> None:
    some = parts(2)
    some[0].leave()
    some[1].leave(PeerLost("gone"))

    assert Together("all", some).state is State.FAILED


def test_settled_only_when_no_part_moves_bytes_any_more() -> None:
    some = parts()
    whole = Together("all", some)

    whole.cancel()
    some[0].leave()
    some[1].leave()

    assert whole.state is State.CANCELLED
    assert not whole.settled
    assert not whole.settle(0)
    some[2].leave()
    assert whole.settled
    assert whole.settle(0)


def test_too_late_is_too_late_for_all() -> None:
    some = parts()

    with pytest.raises(TransferError, match="took over"):
        Together("all", some).wait(0)

    assert {part.state for part in some} == {State.CANCELLED}
