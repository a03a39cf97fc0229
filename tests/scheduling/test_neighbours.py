"""An account has others' calls in it, and what is told of it has not."""

from pdgate.scheduling.endpoint import Endpoint
from pdgate.scheduling.neighbours import SharedEndpoint
from pdgate.scheduling.reservation import Reservation
from tests.support.scripted import P0


def test_others_hear_of_our_calls_only() -> None:
    told = [0, 0, 0, 0, 0]
    endpoint = Endpoint(P0)
    endpoint.shared = SharedEndpoint(told)
    endpoint.shared.take_in(endpoint, endpoint.shared.near, 5, 500, 50, 3)

    with Reservation(endpoint, 10, reads=True) as reservation:
        assert told == [1, 10, 10, 0, 0]
        assert (endpoint.calls, endpoint.tokens, endpoint.unread_tokens) == (6, 510, 60)
        reservation.has_read(0.1)
        assert told == [1, 10, 0, 1, 0]
        assert endpoint.answering == 4

    assert told == [0, 0, 0, 0, 0]
    assert (endpoint.calls, endpoint.own_calls) == (5, 0)


def test_what_is_only_read_is_told_as_such() -> None:
    told = [0, 0, 0, 0, 0]
    endpoint = Endpoint(P0)
    shared = endpoint.shared = SharedEndpoint(told)
    shared.take_in(endpoint, shared.near, 5, 500, 50, 3, 2)

    with Reservation(endpoint, 10, reads=True, reads_only=True):
        assert told == [1, 10, 10, 0, 1]
        assert (endpoint.prefills, endpoint.own_prefills) == (3, 1)
    shared.take_in(endpoint, shared.near, 4, 400, 0, 4, 0)
    assert (endpoint.prefills, endpoint.own_prefills, told[4]) == (0, 0, 0)


def test_what_others_have_ended_is_gone_from_the_account() -> None:
    endpoint = Endpoint(P0)
    endpoint.shared = SharedEndpoint([0, 0, 0, 0, 0])

    with Reservation(endpoint, 10, reads=True):
        endpoint.shared.take_in(endpoint, endpoint.shared.near, 5, 500, 50, 3)
        endpoint.shared.take_in(endpoint, endpoint.shared.near, 2, 200, 20, 1)
        assert (endpoint.calls, endpoint.tokens) == (3, 210)
        assert (endpoint.unread_tokens, endpoint.answering) == (30, 1)
        assert (endpoint.own_calls, endpoint.own_unread_tokens) == (1, 10)


def test_workers_and_replicas_count_side_by_side_and_are_told_of_our_own_only() -> None:
    told = [0, 0, 0, 0, 0]
    endpoint = Endpoint(P0)
    shared = SharedEndpoint.of(endpoint)
    shared.told = told

    with Reservation(endpoint, 10, reads=True):
        shared.take_in(endpoint, shared.near, 5, 500, 50, 3)
        shared.take_in(endpoint, shared.far, 7, 700, 70, 4)
        shared.changed(endpoint)
        assert (endpoint.calls, endpoint.own_calls, shared.far.calls) == (13, 1, 7)
        assert told == [1, 10, 10, 0, 0]
        assert shared.own(endpoint) == (1, 10, 10, 0)
        shared.take_in(endpoint, shared.near, 0, 0, 0, 0)
        assert (endpoint.calls, endpoint.tokens) == (8, 710)
    assert SharedEndpoint.of(endpoint) is shared
