"""Tickets: requests of a decode engine that wait for a prefill worker, and which serves them. No I/O.

    open --> in line --claim--> being served --close--> over
               ^                     |
               '------ again --------'     that worker's engine failed, others may try

A turn is one stay in line: each worker that tries gets a new one. All methods are
thread-safe; a cancelled or closed ticket ends the wait in line.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from pdgate.cluster.queue.contract import Item
from pdgate.engine.prefill_worker.wire import Claim, ClaimWord
from pdgate.transfer.device.base import DeviceEvent
from pdgate.transfer.messenger.core import MessengerCore
from pdgate.transfer.messenger.errors import HandOverError, Why
from pdgate.transfer.messenger.source import Target

Ended = Callable[[str, str | None], bool]
"""Gets the request and its error, if any. True if another load of it was started."""


@dataclass(eq=False, slots=True)
class TicketTurn:
    """
    Attributes:
        ticket: Whose turn it is.
        claim: Of the worker that serves it, once one does.
        changed: A worker does, or none will.
        ended: The worker may be told `word`.
    """

    ticket: "Ticket"
    number: int
    claim: Claim | None = None
    changed: threading.Event = field(default_factory=threading.Event)
    ended: threading.Event = field(default_factory=threading.Event)
    word: ClaimWord = ClaimWord.OVER

    @property
    def key(self) -> str:
        """What both engines call it."""
        return f"{self.ticket.item.id}#{self.number}"


@dataclass(eq=False, slots=True)
class Ticket:
    """
    Attributes:
        target: The pages to fill; the same ones in every turn.
        until: On time.monotonic(): no longer than that it waits in line.
        after: The last that a device does with the pages; None where nothing does.
        there: When what `target` skips is in its pages; None: it is.
        tries: The highest number of a delivery that was let in.
        why: What the last failure was.
    """

    item: Item
    request_id: str
    prompt: tuple[int, ...]
    target: Target
    until: float
    after: DeviceEvent | None = None
    there: DeviceEvent | None = None
    tries: int = 0
    closed: bool = False
    why: str = ""
    turn: TicketTurn = field(init=False)

    def __post_init__(self) -> None:
        self.turn = TicketTurn(self, 1)


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

    @property
    def unclaimed(self) -> int:
        """Those that no worker has taken."""
        with self._lock:
            return sum(
                1
                for ticket in self._by_item.values()
                if ticket.turn.claim is None and not ticket.closed
            )

    def of(self, request_id: str) -> Ticket | None:
        with self._lock:
            return self._by_request.get(request_id)

    def claim(self, claim: Claim) -> TicketTurn | ClaimWord:
        """The turn that this worker serves from now on, or why it does not."""
        with self._lock:
            ticket = self._by_item.get(claim.id)
            if ticket is None or ticket.closed:
                return ClaimWord.GONE
            turn = ticket.turn
            if turn.claim is not None or claim.tries <= ticket.tries:
                return ClaimWord.TAKEN
            ticket.tries = claim.tries
            turn.claim = claim
            turn.changed.set()
            return turn

    def told(self, request_id: str, number: int, claim: Claim) -> None:
        """Another rank's turn of this number is served by this claim, and so is ours, if it waits."""
        with self._lock:
            ticket = self._by_request.get(request_id)
            if ticket is None or ticket.closed or ticket.turn.number != number:
                return
            ticket.turn.claim = claim
            ticket.turn.changed.set()

    def wait(self, turn: TicketTurn, seconds: float) -> Claim | None:
        """The claim of its worker; None without one yet. Raises HandOverError if none will come."""
        turn.changed.wait(seconds)
        with self._lock:
            if turn.claim is None and (turn.ticket.closed or turn.ticket.turn is not turn):
                raise HandOverError(Why.CANCELLED, "it does not wait for a prefill any more")
            return turn.claim

    def again(self, ticket: Ticket, why: str) -> TicketTurn | None:
        """Back in line after a failure; None if it is over, or was not being served."""
        with self._lock:
            old = ticket.turn
            if ticket.closed or old.claim is None:
                return None
            ticket.why = why
            ticket.turn = TicketTurn(ticket, old.number + 1)
            old.word = ClaimWord.AGAIN
            old.ended.set()
            return ticket.turn

    def cancel(self, request_id: str) -> None:
        """Cancel a request's ticket; its worker hears so by `close`, when nothing moves any more."""
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


class SecondTries(MessengerCore):
    """A core in front of another, which hears of a failed load only if it stays failed.

    `ended` sees how each load ends, and may start it anew, into the same pages: nothing can land
    in them any more.
    """

    def __init__(self, core: MessengerCore, ended: Ended, given_up: Callable[[str], None]) -> None:
        """`given_up` gets the request of a load that failed while bytes may still land."""
        self._core = core
        self._ended = ended
        self._given_up = given_up

    def loaded(self, request_id: str, error: str | None = None) -> None:
        if not self._ended(request_id, error):
            self._core.loaded(request_id, error)

    def gave_up(self, request_id: str, error: str) -> None:
        self._given_up(request_id)
        self._core.gave_up(request_id, error)

    def release(self, request_id: str) -> None:
        self._core.release(request_id)

    def abort(self, request_id: str) -> None:
        self._core.abort(request_id)
