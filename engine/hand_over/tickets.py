"""Which requests of a decode engine wait for a prefill worker, and who serves them. No I/O.

    open --> in line --claim--> being served --close--> over
               ^                     |
               '------ again --------'     that worker's engine failed, others may try

A turn is one stay in line: each worker that tries gets a new one. All methods are
thread-safe; a cancelled or closed ticket ends whoever waits in line.
"""

import threading
from dataclasses import dataclass, field

from pdgate.cluster.queue.contract import Item
from pdgate.engine.prefill_worker.wire import Claim, Word
from pdgate.transfer.messenger.errors import HandOverError, Why
from pdgate.transfer.messenger.source import Target


@dataclass(eq=False, slots=True)
class Turn:
    """
    Attributes:
        ticket: Whose turn it is.
        claim: Who serves it, once somebody does.
        changed: Somebody does, or nobody will.
        ended: The worker may be told `word`.
    """

    ticket: "Ticket"
    number: int
    claim: Claim | None = None
    changed: threading.Event = field(default_factory=threading.Event)
    ended: threading.Event = field(default_factory=threading.Event)
    word: Word = Word.OVER

    @property
    def key(self) -> str:
        """What both engines call it."""
        return f"{self.ticket.item.id}#{self.number}"


@dataclass(eq=False, slots=True)
class Ticket:
    """
    Attributes:
        target: The pages to fill; the same ones in every turn.
        until: On time.monotonic(): nobody waits in line any longer.
        tries: The highest number of a delivery that was let in.
        why: What the last failure was.
    """

    item: Item
    request_id: str
    prompt: tuple[int, ...]
    target: Target
    until: float
    tries: int = 0
    closed: bool = False
    why: str = ""
    turn: Turn = field(init=False)

    def __post_init__(self) -> None:
        self.turn = Turn(self, 1)


class Tickets:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_item: dict[str, Ticket] = {}
        self._by_request: dict[str, Ticket] = {}
        self._closed = False

    def open(self, ticket: Ticket) -> None:
        with self._lock:
            if self._closed:
                self._end(ticket)
            self._by_item[ticket.item.id] = self._by_request[ticket.request_id] = ticket

    def of(self, request_id: str) -> Ticket | None:
        with self._lock:
            return self._by_request.get(request_id)

    def claim(self, claim: Claim) -> Turn | Word:
        """The turn that this worker serves from now on, or why it does not."""
        with self._lock:
            ticket = self._by_item.get(claim.id)
            if ticket is None or ticket.closed:
                return Word.GONE
            turn = ticket.turn
            if turn.claim is not None or claim.tries <= ticket.tries:
                return Word.TAKEN
            ticket.tries = claim.tries
            turn.claim = claim
            turn.changed.set()
            return turn

    def wait(self, turn: Turn, seconds: float) -> Claim | None:
        """Who serves it; None if nobody does yet. Raises HandOverError if nobody will."""
        turn.changed.wait(seconds)
        with self._lock:
            if turn.claim is None and (turn.ticket.closed or turn.ticket.turn is not turn):
                raise HandOverError(Why.CANCELLED, "it does not wait for a prefill any more")
            return turn.claim

    def again(self, ticket: Ticket, why: str) -> Turn | None:
        """Back in line after a failure; None if it is over, or was not being served."""
        with self._lock:
            old = ticket.turn
            if ticket.closed or old.claim is None:
                return None
            ticket.why = why
            ticket.turn = Turn(ticket, old.number + 1)
            old.word = Word.AGAIN
            old.ended.set()
            return ticket.turn

    def cancel(self, request_id: str) -> None:
        """Nobody waits for it; who serves it hears so by `close`, when nothing moves any more."""
        with self._lock:
            if (ticket := self._by_request.get(request_id)) is not None:
                ticket.closed = True
                ticket.turn.changed.set()

    def close(self, ticket: Ticket) -> None:
        with self._lock:
            self._end(ticket)
            self._by_item.pop(ticket.item.id, None)
            self._by_request.pop(ticket.request_id, None)

    def close_all(self) -> None:
        with self._lock:
            self._closed = True
            for ticket in self._by_item.values():
                self._end(ticket)

    @staticmethod
    def _end(ticket: Ticket) -> None:
        ticket.closed = True
        ticket.turn.changed.set()
        ticket.turn.ended.set()
