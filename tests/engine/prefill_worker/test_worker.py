"""What a worker makes of an item, with a decode engine that says what the test wants."""

import itertools
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from pdgate.cluster.queue.contract import Delivery, Item, QueueAway
from pdgate.cluster.queue.memory import MemoryQueue
from pdgate.cluster.queue.settings import QueueSettings
from pdgate.engine.hand_over.claim_desk import ClaimDesk
from pdgate.engine.hand_over.tickets import Ticket, Tickets
from pdgate.engine.prefill_worker import worker
from pdgate.engine.prefill_worker.claim import Claiming
from pdgate.engine.prefill_worker.worker import EngineHealth, PrefillWorker, Serving, always
from pdgate.transfer.messenger.source import Target
from pdgate.transfer.runtime.channel import Channel
from pdgate.transfer.runtime.fleet import Identity
from tests.support import waiting
from tests.support.ports import free_port

SECONDS = waiting.PATIENCE_SECONDS
NEVER = 3600.0


class Watched(MemoryQueue):
    """Events for what a worker does to it; fails while `away`."""

    def __init__(self, redeliver_seconds: float = NEVER) -> None:
        super().__init__(QueueSettings("memory://it", redeliver_seconds=redeliver_seconds))
        self.away = False
        self.failed, self.held, self.finished = (threading.Semaphore(0) for _ in range(3))

    def take(self, worker: str, wait_seconds: float) -> Delivery | None:
        self._fail_if_away()
        return super().take(worker, 0.01)

    def hold(self, delivery: Delivery) -> bool:
        self.held.release()
        self._fail_if_away()
        return super().hold(delivery)

    def done(self, item_id: str) -> None:
        self._fail_if_away()
        super().done(item_id)
        self.finished.release()

    def _fail_if_away(self) -> None:
        if self.away:
            self.failed.release()
            raise QueueAway("gone for lunch")


class Decode:
    """A decode engine's end: tickets, and a port to claim them at."""

    def __init__(self) -> None:
        self.tickets = Tickets()
        self.desk = ClaimDesk("127.0.0.1", 0, self.tickets, Channel.close, Identity())
        self._numbers = itertools.count()

    def ticket(self) -> Ticket:
        number = next(self._numbers)
        item = Item(f"r{number}", "127.0.0.1", self.desk.port, tokens=7, deadline=4e9)
        ticket = Ticket(item, f"request {number}", (1, 2), Target((4,), 1, 0), until=0.0)
        self.tickets.open(ticket)
        return ticket

    def close(self) -> None:
        self.tickets.close_all()
        self.desk.close()


@pytest.fixture
def decode() -> Iterator[Decode]:
    decode = Decode()
    yield decode
    decode.close()


Start = Callable[..., PrefillWorker]


@pytest.fixture
def start() -> Iterator[Start]:
    with ExitStack() as stack:

        def working(
            queue: MemoryQueue, hold_seconds: float = NEVER, ready: Callable[[], bool] = always
        ) -> PrefillWorker:
            serving = Serving(uuid.uuid4().hex, "10.0.0.1", 28000, hold_seconds)
            worker = PrefillWorker(queue, serving, Identity(), ready)
            worker.start()
            stack.callback(worker.wait, SECONDS)
            stack.callback(worker.cut)
            return worker

        yield working


def test_an_item_is_claimed_for_its_engine_and_done_when_it_is_over(
    start: Start, decode: Decode
) -> None:
    queue, ticket = Watched(), decode.ticket()
    queue.put(ticket.item)
    start(queue)

    claim = decode.tickets.wait(ticket.turn, SECONDS)

    assert claim is not None
    assert (claim.tries, claim.host, claim.port) == (1, "10.0.0.1", 28000)
    assert queue.depth().taken == 1
    decode.tickets.close(ticket)
    assert queue.finished.acquire(timeout=SECONDS)
    assert queue.depth().taken == 0


def test_it_takes_one_item_at_a_time(start: Start, decode: Decode) -> None:
    queue, first, second = Watched(), decode.ticket(), decode.ticket()
    queue.put(first.item)
    queue.put(second.item)
    start(queue)

    assert decode.tickets.wait(first.turn, SECONDS)
    assert (queue.depth().waiting, second.turn.claim) == (1, None)
    decode.tickets.close(first)
    assert decode.tickets.wait(second.turn, SECONDS)


def test_what_nobody_wants_is_taken_off_the_queue(start: Start, decode: Decode) -> None:
    queue, ticket = Watched(), decode.ticket()
    decode.tickets.close(ticket)
    queue.put(ticket.item)
    start(queue)

    assert queue.finished.acquire(timeout=SECONDS)


def test_what_another_one_serves_is_left_to_the_queue(start: Start, decode: Decode) -> None:
    """The other may die, and then the queue is the only one who knows."""
    queue, ticket, after = Watched(), decode.ticket(), decode.ticket()
    queue.put(ticket.item)
    start(queue)
    assert decode.tickets.wait(ticket.turn, SECONDS)
    queue.free(ticket.item.id)
    queue.put(after.item)
    start(queue)

    # It stood before the other one, so the second worker is through with it.
    assert decode.tickets.wait(after.turn, SECONDS)

    assert queue.depth().taken == 2
    assert not queue.finished.acquire(blocking=False)


def test_it_says_that_it_is_still_at_it_also_to_a_queue_that_is_away(
    start: Start, decode: Decode
) -> None:
    queue, ticket = Watched(), decode.ticket()
    queue.put(ticket.item)
    start(queue, hold_seconds=0.01)
    assert queue.held.acquire(timeout=SECONDS)

    queue.away = True
    assert queue.failed.acquire(timeout=SECONDS)
    queue.away = False
    decode.tickets.close(ticket)

    assert queue.finished.acquire(timeout=SECONDS)


def test_while_its_engine_is_not_well_it_leaves_the_items_to_others(
    start: Start, decode: Decode
) -> None:
    """It would only use up their tries."""
    queue, ticket = Watched(), decode.ticket()
    asked, well = threading.Semaphore(0), threading.Event()

    def ready() -> bool:
        asked.release()
        return well.is_set()

    queue.put(ticket.item)
    start(queue, ready=ready)
    for _ in range(2):
        assert asked.acquire(timeout=SECONDS)
    assert queue.depth().waiting == 1

    well.set()

    assert decode.tickets.wait(ticket.turn, SECONDS)


def test_an_outage_of_the_queue_is_waited_out(start: Start, decode: Decode) -> None:
    queue, ticket = Watched(), decode.ticket()
    queue.away = True
    start(queue)
    assert queue.failed.acquire(timeout=SECONDS)

    queue.away = False
    queue.put(ticket.item)

    assert decode.tickets.wait(ticket.turn, SECONDS)


def test_items_of_an_engine_that_is_not_there_go_when_nobody_can_want_them(start: Start) -> None:
    queue = Watched()
    queue.put(Item("fresh", "127.0.0.1", free_port(), tokens=7, deadline=4e9))
    queue.put(Item("stale", "127.0.0.1", free_port(), tokens=7, deadline=0.0))
    start(queue)

    assert queue.finished.acquire(timeout=SECONDS)

    assert queue.depth().taken == 1


@pytest.mark.parametrize(
    "host",
    ["a..b", "h" * 64, "\ud800", "x\0y", ""],
    # A name that is no text cannot be sent between the processes that share the tests.
    ids=["an empty label", "a long label", "a surrogate", "a zero", "nothing"],
)
def test_an_item_of_an_impossible_host_costs_no_worker(
    start: Start, decode: Decode, host: str
) -> None:
    """Whoever reaches the queue may put any there; one of these ended every worker that took it."""
    queue, ticket = Watched(), decode.ticket()
    queue.put(Item("forged", host, 1, tokens=7, deadline=0.0))
    queue.put(ticket.item)
    start(queue)

    assert decode.tickets.wait(ticket.turn, SECONDS)
    assert queue.finished.acquire(timeout=SECONDS)


def test_a_bug_costs_an_item_and_no_worker(
    start: Start, decode: Decode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "RETRY_SECONDS", 0.01)
    queue, ticket = Watched(), decode.ticket()
    bad = Item("bad", "127.0.0.1", decode.desk.port, tokens=7, deadline=4e9)

    def broken(item: Item, identity: Identity) -> Claiming:
        if item is bad:
            raise ZeroDivisionError
        return Claiming(item, identity)

    monkeypatch.setattr(worker, "Claiming", broken)
    queue.put(bad)
    queue.put(ticket.item)
    start(queue)

    assert decode.tickets.wait(ticket.turn, SECONDS)


def test_a_stopped_worker_finishes_what_it_has_and_takes_nothing_more(
    start: Start, decode: Decode
) -> None:
    queue, ticket, more = Watched(), decode.ticket(), decode.ticket()
    queue.put(ticket.item)
    worker = start(queue)
    assert decode.tickets.wait(ticket.turn, SECONDS)
    queue.put(more.item)

    worker.stop()
    decode.tickets.close(ticket)

    assert worker.wait(SECONDS)
    assert queue.finished.acquire(blocking=False)
    assert (queue.depth().waiting, queue.depth().taken) == (1, 0)


def test_a_worker_that_is_cut_off_leaves_its_item_to_others(start: Start, decode: Decode) -> None:
    queue, ticket = Watched(), decode.ticket()
    queue.put(ticket.item)
    worker = start(queue)
    assert decode.tickets.wait(ticket.turn, SECONDS)

    worker.cut()

    assert worker.wait(SECONDS)
    assert queue.depth().taken == 1


@contextmanager
def engine(status: int) -> Iterator[str]:
    class Api(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status if self.path == "/health" else 404)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Not on the test's output."""

    with HTTPServer(("127.0.0.1", 0), Api) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize(("status", "well"), [(200, True), (503, False)])
def test_an_engine_is_well_if_it_says_so(status: int, well: bool) -> None:
    with engine(status) as url:
        assert EngineHealth(url)() is well


def test_an_engine_that_is_not_there_is_not_well() -> None:
    assert not EngineHealth(f"http://127.0.0.1:{free_port()}")()


@pytest.mark.parametrize("url", ["", "127.0.0.1:8000", "https://h", "http://"])
def test_what_cannot_be_asked_is_refused_at_the_start(url: str) -> None:
    with pytest.raises(ValueError, match="http://host:port"):
        EngineHealth(url)
