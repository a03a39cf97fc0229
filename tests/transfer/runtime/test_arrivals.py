from pdgate.transfer.base import State, TransferError
from pdgate.transfer.runtime.arrivals import Arrivals
from pdgate.transfer.runtime.running import RunningTransfer


def expected(arrivals: Arrivals, count: int) -> RunningTransfer:
    transfer = RunningTransfer("expecting", moves_bytes=False)
    arrivals.expect(1, count, transfer)
    return transfer


def test_who_came_first_is_served_first() -> None:
    arrivals = Arrivals()
    first, second = expected(arrivals, 2), expected(arrivals, 1)

    arrivals.count(1)
    assert (first.state, second.state) == (State.RUNNING, State.RUNNING)
    arrivals.count(1)
    assert (first.state, second.state) == (State.DONE, State.RUNNING)
    arrivals.count(1)

    assert second.state.value == State.DONE


def test_who_gave_up_uses_up_nothing() -> None:
    arrivals = Arrivals()
    gone, patient = expected(arrivals, 1), expected(arrivals, 1)
    gone.cancel()

    arrivals.count(1)

    assert patient.state is State.DONE


def test_nobody_waits_for_a_region_that_is_closed() -> None:
    arrivals = Arrivals()
    early = expected(arrivals, 1)

    arrivals.fail(TransferError("closed"))
    late = expected(arrivals, 1)

    assert (early.state, late.state) == (State.FAILED, State.FAILED)


def test_who_gave_up_leaves_nothing_behind() -> None:
    """Each push that fails gives up, and has an immediate that no other will have."""
    arrivals = Arrivals()
    first, second = expected(arrivals, 2), expected(arrivals, 1)
    arrivals.count(1)

    first.cancel()

    assert second.state is State.DONE
    expected(arrivals, 1).cancel()
    assert not arrivals._waiting


def test_what_landed_for_nobody_is_forgotten() -> None:
    arrivals = Arrivals()
    for immediate in (1, 2):
        arrivals.count(immediate)

    arrivals.forget(range(2, 9))

    assert list(arrivals._counts) == [1]
    assert expected(arrivals, 1).state is State.DONE
