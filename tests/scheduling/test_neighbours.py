"""An account has others' calls in it, and what is told of it has not."""

from pdgate.scheduling.candidate import Candidate
from pdgate.scheduling.neighbours import Shared
from pdgate.scheduling.reservation import Reservation
from tests.support.scripted import P0


def test_others_hear_of_our_calls_only() -> None:
    told = [0, 0, 0, 0]
    candidate = Candidate(P0)
    candidate.shared = Shared(told)
    candidate.shared.take_in(candidate, candidate.shared.near, 5, 500, 50, 3)

    with Reservation(candidate, 10, reads=True) as reservation:
        assert told == [1, 10, 10, 0]
        assert (candidate.calls, candidate.tokens, candidate.unread_tokens) == (6, 510, 60)
        reservation.has_read(0.1)
        assert told == [1, 10, 0, 1]
        assert candidate.answering == 4

    assert told == [0, 0, 0, 0]
    assert (candidate.calls, candidate.own_calls) == (5, 0)


def test_what_others_have_ended_is_gone_from_the_account() -> None:
    candidate = Candidate(P0)
    candidate.shared = Shared([0, 0, 0, 0])

    with Reservation(candidate, 10, reads=True):
        candidate.shared.take_in(candidate, candidate.shared.near, 5, 500, 50, 3)
        candidate.shared.take_in(candidate, candidate.shared.near, 2, 200, 20, 1)
        assert (candidate.calls, candidate.tokens) == (3, 210)
        assert (candidate.unread_tokens, candidate.answering) == (30, 1)
        assert (candidate.own_calls, candidate.own_unread_tokens) == (1, 10)


def test_workers_and_replicas_count_side_by_side_and_are_told_of_our_own_only() -> None:
    told = [0, 0, 0, 0]
    candidate = Candidate(P0)
    shared = Shared.of(candidate)
    shared.told = told

    with Reservation(candidate, 10, reads=True):
        shared.take_in(candidate, shared.near, 5, 500, 50, 3)
        shared.take_in(candidate, shared.far, 7, 700, 70, 4)
        shared.changed(candidate)
        assert (candidate.calls, candidate.own_calls, shared.far.calls) == (13, 1, 7)
        assert told == [1, 10, 10, 0]
        assert shared.own(candidate) == (1, 10, 10, 0)
        shared.take_in(candidate, shared.near, 0, 0, 0, 0)
        assert (candidate.calls, candidate.tokens) == (8, 710)
    assert Shared.of(candidate) is shared
