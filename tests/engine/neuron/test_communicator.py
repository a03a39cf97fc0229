"""Two-sided transfers are matched by position and by nothing else, on every backend."""

from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pdgate.engine.neuron.communicator import PENDING
from pdgate.engine.neuron.posts import BATCH, PostGate
from pdgate.transfer.base import Range, Region
from tests.engine.neuron.two_ends import MEMORY_BYTES, Ends
from tests.support.kv_backends import BACKENDS, require


@pytest.fixture(params=BACKENDS)
def ends(request: pytest.FixtureRequest) -> Iterator[Ends]:
    require(request.param)
    with ExitStack() as stack:
        yield Ends(request.param, stack)


@pytest.fixture
def shared() -> Iterator[Ends]:
    """Where the backend does not matter."""
    with ExitStack() as stack:
        yield Ends("shm", stack)


@pytest.fixture
def hasty() -> Iterator[Ends]:
    """Each end gives up soon what the other does not do its part of."""
    with ExitStack() as stack:
        yield Ends("shm", stack, seconds=0.2)


def test_the_first_piece_of_the_one_goes_into_the_first_of_the_other(ends: Ends) -> None:
    tokens = [ends.send((0, 100), (500, 30)), ends.receive((1000, 100), (40, 30))]

    assert ends.done(tokens) == [None, None]
    assert ends.same((0, 100), (1000, 100))
    assert ends.same((500, 30), (40, 30))
    assert not any(ends.target.memory[:40])
    assert not any(ends.target.memory[1100:])


@pytest.mark.parametrize("first", ["sender", "receiver"])
def test_either_may_post_first(shared: Ends, first: str) -> None:
    if first == "sender":
        sent = shared.send((0, 64))
        shared.pump()
        assert not sent.done
        received = shared.receive((0, 64))
    else:
        received = shared.receive((0, 64))
        shared.pump()
        assert not received.done
        sent = shared.send((0, 64))

    assert shared.done([sent, received]) == [None, None]
    assert shared.same((0, 64), (0, 64))


def test_nothing_is_written_before_the_other_end_has_posted(shared: Ends) -> None:
    """Its memory is its own until then."""
    shared.send((0, 64))
    shared.pump()

    assert not any(shared.target.memory)


def test_posts_are_served_in_the_order_in_which_they_came(shared: Ends) -> None:
    tokens = [shared.send((at, 8)) for at in range(0, 400, 8)]
    tokens += [shared.receive((at, 8)) for at in range(0, 400, 8)]

    assert set(shared.done(tokens)) == {None}
    assert shared.same((0, 400), (0, 400))


@settings(max_examples=15)
@given(counts=st.lists(st.integers(1, 300), min_size=1, max_size=4))
def test_any_number_of_pieces_goes_round_the_ring(counts: list[int]) -> None:
    """More than are ever pending, and batches that the ring's end cuts in two."""
    with ExitStack() as stack:
        ends = Ends("shm", stack)
        tokens, at = [], 0
        for count in counts:
            lists = [((at + n) % 1000, 1) for n in range(count)]
            tokens += [ends.send(*lists), ends.receive(*lists)]
            at += count

        assert set(ends.done(tokens)) == {None}
        length = min(1000, sum(counts))
        assert ends.same((0, length), (0, length))


def test_no_more_than_the_limit_are_pending(shared: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    told = []
    write = shared.d_backend.write

    def watched(local: Region, remote: object, ranges: list[Range], *more: object) -> object:
        told.append(sum(one.length for one in ranges) // 16)
        return write(local, remote, ranges, *more)  # type: ignore[arg-type]

    monkeypatch.setattr(shared.d_backend, "write", watched)
    shared.receive(*((n, 1) for n in range(3 * PENDING)))
    shared.until(lambda: sum(told) >= PENDING)
    shared.pump()

    assert told == [BATCH] * (PENDING // BATCH)


def test_a_gate_holds_a_post_and_all_behind_it(shared: Ends) -> None:
    """As a layer that is not computed yet."""
    gate = PostGate(is_open=False)
    held, behind = shared.send((0, 8), gate=gate), shared.send((8, 8))
    received = [shared.receive((0, 8)), shared.receive((8, 8))]
    shared.pump()
    assert not any(shared.target.memory)

    gate.is_open = True

    assert set(shared.done([held, behind, *received])) == {None}
    assert shared.same((0, 16), (0, 16))


def test_lists_that_differ_end_the_communicator_instead_of_mixing_bytes(shared: Ends) -> None:
    sent = [shared.send((0, 8), (8, 16)), shared.send((0, 4))]
    shared.receive((0, 16), (16, 8))

    errors = shared.done(sent)

    assert all("same lengths" in str(error) for error in errors)
    assert not any(shared.target.memory)


def test_a_receiver_that_never_posts_costs_the_sender_no_place(hasty: Ends) -> None:
    """The reference holds such a slot for ever."""
    (error,) = hasty.done([hasty.send((0, 8))])

    assert error is not None


def test_a_sender_that_never_posts_is_given_up(hasty: Ends) -> None:
    (error,) = hasty.done([hasty.receive((0, 8))])

    assert error is not None


def test_after_its_end_a_communicator_takes_nothing_more(hasty: Ends) -> None:
    hasty.done([hasty.send((0, 8))])

    late = hasty.send((0, 8))

    assert late.done
    assert late.error is not None


def test_memory_of_another_life_is_refused(ends: Ends) -> None:
    """A decode engine that was started again has new memory, and a new pairing."""
    ends.receive((0, 8))
    ends.pump()
    ends.target.close()

    (error,) = ends.done([ends.send((0, 8))])

    assert error is not None


def test_a_piece_outside_our_memory_fails_before_anything_is_sent(shared: Ends) -> None:
    tokens = [shared.send((MEMORY_BYTES, 8)), shared.receive((0, 8))]

    (error,) = shared.done(tokens[:1])

    assert "outside our" in str(error)
