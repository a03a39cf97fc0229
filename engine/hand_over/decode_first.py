"""decode-first: decode puts its prompt on a queue, and whichever prefill engine is free takes it.

    decode                       queue                     prefill
      | pages taken                |                          |
      | -- item -----------------> | -- item ---------------> |  its worker (prefill_worker/)
      | <------------------------------- claim: I take it --- |
      | -- prompt, and where the pages are -----------------> |  from here on as vllm-kvt, batch:
      | <-------------------------------- KV, layer by layer  |  counted writes, or none
      | -- over ---------------------------------------------> |
      |                            | <-------------- done --- |

The pages are named to one prefill engine at a time, by decode itself, when it has claimed
them; and decode knows when that one can write no more. So a worker that comes late, twice or
from the dead is named no pages, and a prefill that failed is simply put
back in line, with the same pages.

What decode's prefix cache has of the prompt is lent to prefill (lending.py), which computes
the rest.

    {do_queued_prefill: true}    the queue; other fields mean what they mean to vllm-kvt

Decode may decide itself which prompts go there: those of which it has more left to compute than
`max_local_prefill`, while fewer than `max_prefill_queue` wait on the queue. It knows the tokens and its
cache, where a gateway estimates.

Source of the idea: NVIDIA Dynamo, "Disaggregated serving" (conditional disaggregation with a
global prefill queue; max_local_prefill_length and max_prefill_queue_size, decided by the decode worker).
"""

import logging
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from pdgate.cluster.queue import settings as queue_settings
from pdgate.cluster.queue.contract import Buried, Item, QueueError, QueueFull
from pdgate.cluster.queue.opening import open_queue
from pdgate.cluster.queue.watch import QueueWatch, gauges
from pdgate.engine.connector import Arrival, Compute, Core, Load, Pages, Plan
from pdgate.engine.hand_over import params as read
from pdgate.engine.hand_over.claim_desk import ClaimDesk
from pdgate.engine.hand_over.kvt import KvtHandOver
from pdgate.engine.hand_over.lending import Lending
from pdgate.engine.hand_over.settings import ConnectorSettings
from pdgate.engine.hand_over.tickets import SecondTries, Ticket, Tickets, TicketTurn
from pdgate.engine.prefill_worker.wire import Claim
from pdgate.engine.prefill_worker.worker import PrefillWorker, Serving
from pdgate.protocols.dialects import decode_first
from pdgate.protocols.instance import Role
from pdgate.transfer.messenger import core as messenger
from pdgate.transfer.messenger.errors import HandOverError, Why
from pdgate.transfer.messenger.messages import Lent
from pdgate.transfer.messenger.source import Source, Target
from pdgate.transfer.runtime.channel import Watch

RENEW_SECONDS = 1.0
"""How often a waiting request sees to it that its item is on the queue."""
UNATTENDED_SECONDS = 10.0
"""No worker has asked the queue for so long: none will come. Frozen and ended ones alike."""
CLOSE_SECONDS = 10.0
MIN_SECONDS = 0.001
"""Of a wait: none at all would mean that prefill has the pages already."""

log = logging.getLogger(__name__)


class QueuedPrompt(tuple[int, ...]):
    """Prompt of a request that is to go to the queue."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Queued(Source):
    """A source whose address is known when a worker has claimed it."""

    turn: TicketTurn


class DecodeFirstHandOver(KvtHandOver):
    """What prefill does is vllm-kvt's; which engine is asked to do it comes from the queue."""

    load_failure: ClassVar = "error"
    has_worker: ClassVar = True
    """Whether an engine that may prefill takes from the queue by itself."""

    def __init__(self, *, core: Core, settings: ConnectorSettings, **parts: Any) -> None:
        """Raises OSError, LookupError, ValueError."""
        chosen = queue_settings.read(settings.queue)
        self._queue = open_queue(chosen, settings.model)
        self._tickets = Tickets()
        super().__init__(core=core, settings=settings, **parts)
        prefills = settings.may(Role.PREFILL)
        try:
            self._desk = ClaimDesk(
                settings.kv_host,
                0 if prefills else settings.kv_port,
                self._tickets,
                self._service.serve,
                settings.identity,
            )
        except OSError:
            super().close()
            raise
        self._watch = QueueWatch(self._queue)
        # A worker that works shows itself four times in `redeliver_seconds`.
        self._unattended_seconds = max(UNATTENDED_SECONDS, chosen.redeliver_seconds)
        self._worker: PrefillWorker | None = None
        self._takes = prefills
        if prefills and self.has_worker and settings.speaks_for_all:
            serving = Serving(uuid.uuid4().hex, *self.service_address, chosen.hold_seconds)
            self._worker = PrefillWorker(self._queue, serving, settings.identity, self._takes_now)
            self._worker.start()
        if not prefills:
            self.kv_address = (settings.advertised_host, self._desk.port)
        self._lending = Lending(self._offers, self.engine_id, self.kv_address)

    @classmethod
    def check(cls, settings: ConnectorSettings) -> None:
        try:
            queue_settings.read(settings.queue)
        except ValueError as error:
            raise ValueError(f"decode-first needs a prefill queue (--queue): {error}") from None

    def role_is(self, role: Role) -> None:
        self._takes = role.serves(Role.PREFILL)

    def _takes_now(self) -> bool:
        return self._takes

    def hearer(self, core: Core) -> messenger.MessengerCore:
        return SecondTries(core, self._ended, self._tickets.cancel)

    def service_port(self) -> int:
        """An engine that only decodes is called at the desk, which passes it on."""
        return self.settings.kv_port if self.settings.may(Role.PREFILL) else 0

    def plan(self, arrival: Arrival) -> Plan:
        if not read.flag(arrival.params or {}, decode_first.ASK):
            return super().plan(arrival)
        self.settings.demand(Role.DECODE)
        tokens = len(arrival.prompt) - 1
        if not tokens:
            return None
        if self._rather_here(arrival):
            return Compute()
        return Load(tokens, QueuedPrompt(arrival.prompt))

    def _rather_here(self, arrival: Arrival) -> bool:
        if not self.settings.speaks_for_all:
            # What the first rank plans is done.
            return False
        most, longest = self.settings.max_local_prefill, self.settings.max_prefill_queue
        if most is not None and len(arrival.prompt) - arrival.cached_tokens() <= most:
            return True
        if longest is None:
            return False
        depth = self._watch.depth
        # The queue's own count is a moment old; ours is not.
        return depth is None or max(depth.waiting, self._tickets.unclaimed) >= longest

    def start(self, request_id: str, load: Load, pages: Pages, skip_tokens: int) -> None:
        if not isinstance(load.ticket, QueuedPrompt):
            super().start(request_id, load, pages, skip_tokens)
            return
        if skip_tokens >= load.tokens:
            self.core.loaded(request_id)
            return
        lease = self.settings.lease_seconds
        item = Item(
            f"{self.engine_id}/{request_id}",
            self.settings.advertised_host,
            self._desk.port,
            load.tokens - skip_tokens,
            time.time() + lease,
        )
        to = pages.block_ids[: self._layout.blocks_for(load.tokens)]
        target = Target(to, load.tokens, skip_tokens // self._layout.block_tokens)
        until, after = time.monotonic() + lease, self.settings.moment()
        there = self.settings.step_end() if target.skip else None
        ticket = Ticket(item, request_id, load.ticket, target, until, after, there)
        self._tickets.open(ticket)
        try:
            self._load_in(ticket.turn)
        except RuntimeError:
            self._tickets.close(ticket)
            raise

    def cancel(self, request_id: str) -> None:
        self._tickets.cancel(request_id)
        super().cancel(request_id)

    def locate(self, source: Source, until: float, watch: Watch) -> tuple[str, int]:
        if not isinstance(source, Queued):
            return super().locate(source, until, watch)
        turn = source.turn
        if self.settings.speaks_for_all:
            claim = turn.claim or self._stand_in_line(turn)
            self.settings.tell_ranks((turn.ticket.request_id, turn.number, claim))
            return claim.host, claim.port
        while (told := self._tickets.wait(turn, max(0.0, until - time.monotonic()))) is None:
            if time.monotonic() >= until:
                raise HandOverError(Why.TOO_LATE, "no prefill worker came for it")
        return told.host, told.port

    def told(self, word: tuple[str, int, Claim]) -> None:
        """Hear from the first rank, which stands in line for all, which worker serves."""
        self._tickets.told(*word)

    def gauges(self) -> Mapping[str, tuple[str, float]]:
        return gauges(self._watch.depth, self._watch.away_seconds)

    def leave(self) -> None:
        if self._worker is not None:
            self._worker.stop()

    def close(self) -> None:
        if self._worker is not None:
            self._worker.cut()
        self._tickets.close_all()
        super().close()
        self._desk.close()
        if self._worker is not None and not self._worker.wait(CLOSE_SECONDS):
            log.error("the prefill worker does not end")
        self._watch.close()
        self._queue.close()

    def _load_in(self, turn: TicketTurn) -> None:
        """Raises RuntimeError if there is no room for a thread; then nothing was started."""
        ticket = turn.ticket
        source = Queued(
            host="",
            port=0,
            key=turn.key,
            wait_seconds=max(MIN_SECONDS, ticket.until - time.monotonic()),
            prompt=ticket.prompt,
            lent=self._lend(turn),
            push=True,
            context=self.settings.takes_states,
            context_needed=False,
            turn=turn,
        )
        try:
            self._loads.start(ticket.request_id, source, ticket.target, ticket.after)
        except RuntimeError:
            self._lending.call_in(turn.key)
            raise

    def _lend(self, turn: TicketTurn) -> Lent | None:
        target = turn.ticket.target
        if not target.skip or self.settings.ranks:
            return None
        blocks, tokens = target.block_ids[: target.skip], target.skip * self._layout.block_tokens
        return self._lending.lend(turn.key, blocks, tokens, turn.ticket.there)

    def _stand_in_line(self, turn: TicketTurn) -> Claim:
        """Puts the item on the queue until a worker takes it. Raises HandOverError."""
        ticket, away = turn.ticket, ""
        # First of all: it may not be wanted by now.
        claim = self._tickets.wait(turn, 0)
        while claim is None:
            left = ticket.until - time.monotonic()
            if left <= 0:
                why = away or ticket.why or "no prefill worker came for it"
                raise HandOverError(Why.TOO_LATE, why)
            if self._watch.unattended_seconds >= self._unattended_seconds:
                # A worker may have come since the last look.
                self._watch.look()
            unattended = self._watch.unattended_seconds
            if unattended >= self._unattended_seconds:
                why = f"no prefill worker has asked for a prompt for {unattended:.0f} s"
                raise HandOverError(Why.TOO_LATE, why)
            away = self._put(ticket)
            claim = self._tickets.wait(turn, min(left, RENEW_SECONDS))
        return claim

    def _put(self, ticket: Ticket) -> str:
        """Why the queue fails us now, if it does. Raises HandOverError if it refuses."""
        try:
            self._queue.put(ticket.item)
        except QueueFull as error:
            raise HandOverError(Why.FULL, str(error)) from None
        except Buried as error:
            raise HandOverError(Why.BURIED, f"{error}: {ticket.why}") from None
        except QueueError as error:
            log.warning("%s is not on the prefill queue: %s", ticket.item.id, error)
            return str(error)
        return ""

    def _ended(self, request_id: str, error: str | None) -> bool:
        """A load is over, in this thread of its own. True if another one was started."""
        ticket = self._tickets.of(request_id)
        if ticket is None:
            return False
        self._lending.call_in(ticket.turn.key)
        # With several ranks another turn would be for all, some of which may have their share: the request fails.
        if error is not None and time.monotonic() < ticket.until and not self.settings.ranks:
            turn = self._tickets.again(ticket, error)
            if turn is not None and self._put_back(turn):
                return True
        served = ticket.turn.claim is not None
        self._tickets.close(ticket)
        if not served and self.settings.speaks_for_all:
            self._tell(self._queue.done, ticket.item)
        return False

    def _put_back(self, turn: TicketTurn) -> bool:
        ticket = turn.ticket
        log.info("%s goes back to the prefill queue: %s", ticket.item.id, ticket.why)
        self._tell(self._queue.free, ticket.item)
        try:
            self._load_in(turn)
        except RuntimeError as error:
            log.error("no thread for %s: %s", ticket.item.id, error)
            return False
        return True

    def _tell(self, say: Callable[[str], None], item: Item) -> None:
        """Only makes things faster: the queue finds out by itself, by silence or by a claim."""
        try:
            say(item.id)
        except QueueError as error:
            log.info("the prefill queue was not told of %s: %s", item.id, error)
