"""When a request of P's may leave, and when its pages are free."""

import pytest

from pdgate.engine.neuron.kept import Requests
from pdgate.engine.neuron.posts import CompletionToken

BLOCKS = (4, 7)


def requests(*, layer_wise: bool = False) -> Requests:
    made = Requests(2, layer_wise=layer_wise)
    made.expect("u", "r", 20)
    return made


def test_a_request_may_leave_when_it_is_kept() -> None:
    made = requests()
    assert made.ready("u") is None

    assert made.keep("r", BLOCKS, 0)

    one = made.ready("u")
    assert one is not None
    assert (one.blocks, one.first_token) == (BLOCKS, 0)
    assert all(gate.is_open for gate in one.gates)


def test_layer_by_layer_it_may_leave_as_soon_as_it_has_begun() -> None:
    made = requests(layer_wise=True)

    made.computed("r", 0, BLOCKS, 12)

    one = made.ready("u")
    assert one is not None
    assert [gate.is_open for gate in one.gates] == [False, False]


def test_a_layer_is_sent_when_it_has_the_whole_prompt() -> None:
    made = requests(layer_wise=True)
    assert not made.computed("r", 0, BLOCKS, 12)
    assert made.computed("r", 0, BLOCKS, 20)

    one = made.ready("u")
    assert one is not None
    assert [gate.is_open for gate in one.gates] == [True, False]


def test_otherwise_it_waits_for_its_token() -> None:
    made = requests()
    made.computed("r", 0, BLOCKS, 20)

    assert made.ready("u") is None


def test_one_uid_is_one_live_request() -> None:
    with pytest.raises(ValueError, match="another live request"):
        requests().expect("u", "other", 20)


def test_who_asks_for_one_that_is_gone_is_told_why() -> None:
    made = requests()
    made.drop("r", "the client left")

    assert made.why_gone("u") == "the client left"
    assert made.ready("u") is None


def test_a_uid_may_be_used_again_when_its_request_is_gone() -> None:
    made = requests()
    made.drop("r", "the client left")

    made.expect("u", "r2", 20)

    assert made.why_gone("u") is None


def test_pages_of_one_that_leaves_are_in_use_when_it_is_dropped() -> None:
    made = requests()
    made.keep("r", BLOCKS, 7)
    one = made.ready("u")
    assert one is not None
    one.leaving = CompletionToken()

    assert made.drop("r", "the lease is over") is one
    made.left(one)

    assert made.why_gone("u") == "the lease is over"
    assert made.drop("r", "again") is None


def test_one_that_left_before_its_token_keeps_no_pages() -> None:
    made = requests(layer_wise=True)
    made.computed("r", 0, BLOCKS, 20)
    one = made.ready("u")
    assert one is not None
    one.leaving, one.token_due = CompletionToken(), True
    made.left(one)

    assert not made.keep("r", BLOCKS, 7)
    found = made.find("u")
    assert found is not None
    assert found.first_token == 7


def test_what_is_never_computed_is_sent_all_the_same_so_that_nobody_waits() -> None:
    """Whoever gets it is refused the token."""
    made = requests(layer_wise=True)
    made.computed("r", 0, BLOCKS, 12)
    one = made.ready("u")
    assert one is not None
    one.leaving = CompletionToken()

    made.drop("r", "aborted")

    assert all(gate.is_open for gate in one.gates)
    assert made.why_gone("u") == "aborted"


def test_what_was_given_up_before_it_came_is_not_kept() -> None:
    """The two legs start together, so a client that leaves may be faster than P."""
    made = requests()
    made.unwanted("late")

    assert not made.expect("late", "r2", 20)
    assert made.expect("late", "r3", 20)
