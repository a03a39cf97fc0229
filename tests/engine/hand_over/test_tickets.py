"""Who may serve a request, and who is told what: without a queue, a port or a transfer."""

import threading

import pytest

from pdgate.cluster.queue.contract import Item
from pdgate.engine.hand_over.tickets import Ticket, Tickets, TicketTurn
from pdgate.engine.prefill_worker.wire import Claim, ClaimWord
from pdgate.transfer.messenger.errors import HandOverError, Why
from pdgate.transfer.messenger.source import Target
from tests.support.waiting import PATIENCE_SECONDS as SECONDS


def ticket(name: str = "r1") -> Ticket:
    item = Item(name, "127.0.0.1", 1, tokens=7, deadline=0.0)
    return Ticket(item, f"request {name}", (1, 2), Target((4,), 1, 0), until=0.0)


def claim(tries: int = 1, name: str = "r1", port: int = 1) -> Claim:
    return Claim(name, tries, "127.0.0.1", port)


@pytest.fixture
def tickets() -> Tickets:
    return Tickets()


@pytest.fixture
def waiting(tickets: Tickets) -> Ticket:
    """In line."""
    one = ticket()
    tickets.open(one)
    return one


def served(tickets: Tickets, asked: Claim) -> TicketTurn:
    turn = tickets.claim(asked)
    assert isinstance(turn, TicketTurn)
    return turn


def test_the_first_worker_serves_the_request(tickets: Tickets, waiting: Ticket) -> None:
    assert served(tickets, claim()) is waiting.turn
    assert tickets.wait(waiting.turn, 0) == claim()


def test_who_waits_in_line_hears_of_the_worker(tickets: Tickets, waiting: Ticket) -> None:
    threading.Thread(target=tickets.claim, args=(claim(),)).start()

    assert tickets.wait(waiting.turn, SECONDS) == claim()


def test_nobody_serves_what_is_served_already(tickets: Tickets, waiting: Ticket) -> None:
    served(tickets, claim(tries=1))

    assert tickets.claim(claim(tries=2)) is ClaimWord.TAKEN


def test_what_nobody_knows_is_gone(tickets: Tickets) -> None:
    assert tickets.claim(claim(name="of another life")) is ClaimWord.GONE


def test_after_a_failure_another_worker_may_serve_it(tickets: Tickets, waiting: Ticket) -> None:
    first = served(tickets, claim(tries=1))

    turn = tickets.again(waiting, "it broke")

    assert first.ended.is_set()
    assert first.word is ClaimWord.AGAIN
    assert tickets.wait(first, 0) == claim(tries=1)
    assert turn is waiting.turn
    assert served(tickets, claim(tries=2)) is turn


def test_a_worker_that_comes_with_an_older_delivery_is_too_late(
    tickets: Tickets, waiting: Ticket
) -> None:
    """It was frozen while others had their turn; the queue has given the item to somebody else."""
    served(tickets, claim(tries=2))
    tickets.again(waiting, "it broke")

    assert tickets.claim(claim(tries=1)) is ClaimWord.TAKEN
    assert tickets.claim(claim(tries=2)) is ClaimWord.TAKEN
    assert served(tickets, claim(tries=3))


def test_only_what_was_served_goes_back_in_line(tickets: Tickets, waiting: Ticket) -> None:
    assert tickets.again(waiting, "the queue was full") is None


def test_a_closed_ticket_tells_its_worker_that_it_is_over(
    tickets: Tickets, waiting: Ticket
) -> None:
    turn = served(tickets, claim())

    tickets.close(waiting)

    assert turn.ended.is_set()
    assert turn.word is ClaimWord.OVER
    assert tickets.claim(claim(tries=2)) is ClaimWord.GONE
    assert tickets.of("request r1") is None


def test_a_cancelled_request_leaves_the_line_at_once(tickets: Tickets, waiting: Ticket) -> None:
    threading.Thread(target=tickets.cancel, args=("request r1",)).start()

    with pytest.raises(HandOverError) as error:
        tickets.wait(waiting.turn, SECONDS)
    assert error.value.why is Why.CANCELLED
    assert tickets.claim(claim()) is ClaimWord.GONE


def test_a_cancelled_request_that_is_served_is_over_only_when_it_is_closed(
    tickets: Tickets, waiting: Ticket
) -> None:
    """Its worker holds the item until nothing is written any more."""
    turn = served(tickets, claim())

    tickets.cancel("request r1")

    assert not turn.ended.is_set()
    assert tickets.again(waiting, "cancelled") is None
    tickets.close(waiting)
    assert turn.ended.is_set()


def test_closing_all_ends_who_waits_and_who_comes_later(tickets: Tickets, waiting: Ticket) -> None:
    later = ticket("r2")

    tickets.close_all()
    tickets.open(later)

    for one in (waiting, later):
        with pytest.raises(HandOverError):
            tickets.wait(one.turn, SECONDS)
