"""The port for claims, asked by a worker's own end and by whoever else finds it."""

import itertools
import queue
from collections.abc import Iterator
from contextlib import closing, suppress

import pytest

from pdgate.cluster.queue.contract import Item
from pdgate.engine.hand_over import claim_desk
from pdgate.engine.hand_over.claim_desk import ClaimDesk
from pdgate.engine.hand_over.tickets import Ticket, Tickets
from pdgate.engine.prefill_worker import claim
from pdgate.engine.prefill_worker.claim import Claiming, Unreachable
from pdgate.engine.prefill_worker.wire import PURPOSE, Claim, ClaimWord, Lines, WorkerAnswer
from pdgate.transfer.messenger import messages
from pdgate.transfer.messenger.source import Target
from pdgate.transfer.runtime.channel import Channel
from pdgate.transfer.runtime.fleet import Identity
from tests.support import waiting
from tests.support.proven import channel

NEVER = 3600.0
SECONDS = waiting.PATIENCE_SECONDS


@pytest.fixture
def tickets() -> Tickets:
    return Tickets()


@pytest.fixture
def desk(tickets: Tickets) -> Iterator[ClaimDesk]:
    desk = ClaimDesk("127.0.0.1", 0, tickets, Channel.close, Identity())
    with closing(desk):
        yield desk
        tickets.close_all()


@pytest.fixture
def item(desk: ClaimDesk) -> Item:
    return Item("r1", "127.0.0.1", desk.port, tokens=7, deadline=0.0)


@pytest.fixture
def ticket(tickets: Tickets, item: Item) -> Ticket:
    """In line."""
    one = Ticket(item, "request", (1, 2), Target((4,), 1, 0), until=0.0)
    tickets.open(one)
    return one


CLAIM = Claim("r1", 1, "10.0.0.1", 28000)


def never() -> None:
    raise AssertionError("nobody was to be told")


def test_a_worker_hears_that_it_is_the_one_and_later_that_it_is_over(
    tickets: Tickets, item: Item, ticket: Ticket
) -> None:
    with Claiming(item, Identity()) as claiming:
        assert claiming.ask(CLAIM) is ClaimWord.YOURS
        assert tickets.wait(ticket.turn, 0) == CLAIM

        tickets.close(ticket)
        assert claiming.wait(NEVER, never) is ClaimWord.OVER


def test_a_worker_whose_engine_failed_hears_that_others_are_to_try(
    tickets: Tickets, item: Item, ticket: Ticket
) -> None:
    with Claiming(item, Identity()) as claiming:
        claiming.ask(CLAIM)

        tickets.again(ticket, "out of pages")

        assert claiming.wait(NEVER, never) is ClaimWord.AGAIN


def test_who_asks_for_what_nobody_wants_hears_so(item: Item) -> None:
    with Claiming(item, Identity()) as claiming:
        assert claiming.ask(CLAIM) is ClaimWord.GONE


def test_while_a_worker_waits_it_may_do_something_now_and_then(
    tickets: Tickets, item: Item, ticket: Ticket
) -> None:
    beats = 0

    def beat() -> None:
        nonlocal beats
        beats += 1
        if beats == 3:
            tickets.close(ticket)

    with Claiming(item, Identity()) as claiming:
        claiming.ask(CLAIM)

        assert claiming.wait(0.001, beat) is ClaimWord.OVER
    assert beats >= 3


def test_a_decode_engine_that_falls_silent_does_not_keep_its_worker(
    item: Item, ticket: Ticket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claim, "SILENCE_SECONDS", 0.05)
    with Claiming(item, Identity()) as claiming:
        claiming.ask(CLAIM)

        with pytest.raises(Unreachable, match="says nothing any more"):
            claiming.wait(NEVER, never)


def test_a_decode_engine_that_takes_long_says_that_it_is_there(
    tickets: Tickets, item: Item, ticket: Ticket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claim_desk, "ALIVE_SECONDS", 0.001)
    with channel((item.host, item.port), PURPOSE) as proven:
        lines = Lines(proven)
        lines.say(CLAIM)
        for _ in range(3):
            assert lines.hear(WorkerAnswer).said is ClaimWord.YOURS

    # The worker's own end takes no such word for the last one.
    tickets.again(ticket, "out of pages")
    with Claiming(item, Identity()) as claiming:
        claiming.ask(Claim("r1", 2, "10.0.0.1", 28000))
        beats = itertools.count()

        def beat() -> None:
            if next(beats) == 20:
                tickets.close(ticket)

        assert claiming.wait(0.001, beat) is ClaimWord.OVER


def test_a_worker_that_dies_does_not_end_what_it_has_arranged(
    tickets: Tickets, item: Item, ticket: Ticket
) -> None:
    with Claiming(item, Identity()) as claiming:
        claiming.ask(CLAIM)

    assert tickets.wait(ticket.turn, 0) == CLAIM
    assert not ticket.turn.ended.is_set()


def test_a_decode_engine_that_ends_cannot_be_reached(
    desk: ClaimDesk, tickets: Tickets, item: Item, ticket: Ticket
) -> None:
    with Claiming(item, Identity()) as claiming:
        claiming.ask(CLAIM)
        tickets.close_all()
        assert claiming.wait(NEVER, never) is ClaimWord.OVER
    desk.close()

    with pytest.raises(Unreachable):
        Claiming(item, Identity())


@pytest.mark.parametrize(
    "rubbish",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"{}\n",
        b'{"id": "r1", "tries": 1, "host": "10.0.0.1", "port": 70000}\n',
        b"x" * 5000,
        b"\xff\n",
    ],
)
def test_whoever_speaks_something_else_is_turned_away(
    desk: ClaimDesk, item: Item, ticket: Ticket, rubbish: bytes
) -> None:
    with channel(("127.0.0.1", desk.port), PURPOSE) as proven:
        sock = proven.sock
        sock.sendall(rubbish)
        # A reset is an end, too: of what the desk did not read.
        with suppress(ConnectionResetError):
            assert sock.recv(1) == b""

    with Claiming(item, Identity()) as claiming:
        assert claiming.ask(CLAIM) is ClaimWord.YOURS


def test_who_comes_for_kv_is_served_by_the_kv_side(tickets: Tickets) -> None:
    heard: queue.SimpleQueue[messages.Message | None] = queue.SimpleQueue()

    def serve(came: Channel) -> None:
        heard.put(messages.receive(came))

    with (
        closing(ClaimDesk("127.0.0.1", 0, tickets, serve, Identity())) as desk,
        channel(("127.0.0.1", desk.port)) as proven,
    ):
        messages.send(proven, messages.Ping())

        assert heard.get(timeout=SECONDS) == messages.Ping()
