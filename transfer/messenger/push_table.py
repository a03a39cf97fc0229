"""P's table of pushes: what D asked for, joined with what the engine computes.

    engine      expect -> computed, layer by layer -> kept         on the core's thread
    D           ask, sooner or later ------------> leave           on its connection's thread
    mover       a tile has ended                                   on a thread of its own
    clock       what was dropped has had time to land              on a thread of the table's
    device      what was computed has happened (later.py)          on a thread of the table's

A request is handed over by one push, or by one for each worker of D, which then takes the share
of its ranks: it is done when all that take something here have theirs, and over with the first
push that fails.

Nothing here waits but `leave`. A request that ends lets the engine have its pages back: the
core has to release them, or to abort what still computes them.
"""

import logging
import threading
import time
from collections.abc import Sequence
from enum import Enum

from pdgate.transfer.base import Transfer, TransferError
from pdgate.transfer.device.base import DeviceEvent
from pdgate.transfer.messenger import messages, shards
from pdgate.transfer.messenger.asked import Asked
from pdgate.transfer.messenger.context import Context
from pdgate.transfer.messenger.core import MessengerCore
from pdgate.transfer.messenger.counters import MessengerCounters
from pdgate.transfer.messenger.errors import HandOverError, Why
from pdgate.transfer.messenger.later import Later
from pdgate.transfer.messenger.line import MessengerLine
from pdgate.transfer.messenger.mover import Mover
from pdgate.transfer.messenger.offers import GIVEN_UP, Offers
from pdgate.transfer.messenger.outbox import ContextOutbox
from pdgate.transfer.messenger.push import OutgoingPush, PushRequest
from pdgate.transfer.messenger.shape import ALL, PageShape, Ranks
from pdgate.transfer.runtime.running import RunningTransfer, TransferDeadlines

CLOSE_SECONDS = 10.0
GRACE_SECONDS = 10.0
"""For what is in flight when nothing more is to be written: its last bytes may be all that D misses. As long as
a silent D has.
"""

log = logging.getLogger(__name__)


class Kept(Enum):
    WAITS = "nobody has asked for it yet"
    PUSHING = "the core hears of its end"
    DONE = "all of it has been handed over"


class PushTable:
    def __init__(
        self,
        core: MessengerCore,
        shape: PageShape,
        offers: Offers,
        movers: Sequence[Mover],
        *,
        outbox: ContextOutbox | None = None,
        counters: MessengerCounters | None = None,
        ranks: Ranks = ALL,
    ) -> None:
        """`movers`: one for each of `ranks`. `outbox`, for contexts, is closed with the table."""
        self._core = core
        self._shape = shape
        self._offers = offers
        self._movers = movers
        self._ranks = ranks or range(len(movers))
        self._outbox = outbox
        self._counters = counters or MessengerCounters()
        self._lock = threading.Lock()
        self._requests: dict[str, PushRequest] = {}
        self._pushes: dict[str, list[OutgoingPush]] = {}
        self._later = Later("pdgate-computed")
        self._grace = TransferDeadlines()
        self._closed = False

    @property
    def context_bytes(self) -> int | None:
        """What a context may have; None if none is sent."""
        return None if self._outbox is None else self._outbox.max_bytes

    def expect(self, key: str, request_id: str) -> None:
        """This request is going to be computed. `Offers` knows it already."""
        with self._lock:
            self._requests[request_id] = PushRequest(request_id, key, [0] * self._shape.layers)
            pushes = list(self._pushes.get(key, ()))
        for push in pushes:
            try:
                self._meet(push)
            except HandOverError as error:
                push.line.say(messages.Failed(error.why, error.message))

    def ask(self, line: MessengerLine, asked: Asked) -> OutgoingPush:
        """Written as soon as the key is known and its pages are there; Writing says that they are.

        Raises HandOverError.
        """
        push = OutgoingPush(asked, line, self._lock, self._look)
        with self._lock:
            if self._closed:
                raise HandOverError(Why.CLOSING, "the prefill engine is shutting down")
            others = self._pushes.setdefault(asked.key, [])
            if any(asked.share.ranks & other.asked.share.ranks for other in others):
                raise HandOverError(Why.TAKEN, f"{asked.key!r} is being pushed already")
            others.append(push)
        # Only now: a request that is expected in between finds the push.
        self._meet(push)
        return push

    def computed(
        self,
        request_id: str,
        layer: int,
        block_ids: Sequence[int],
        tokens: int,
        after: DeviceEvent | None = None,
    ) -> None:
        """The leading `tokens` of this layer are in the request's pages, once `after` has happened.

        It is waited for on a thread of the table's; None: it has happened.
        """
        with self._lock:
            request = self._requests.get(request_id)
        if request is None:
            return
        if after is None:
            self._computed(request, layer, block_ids, tokens)
            return

        def happened(lost: TransferError | None) -> None:
            if lost is None:
                self._computed(request, layer, block_ids, tokens)
            else:
                self._lost(request, lost)

        self._later.run(after, happened)

    def kept(
        self,
        request_id: str,
        block_ids: Sequence[int],
        tokens: int,
        first_token: int | None = None,
        context: bytes = b"",
        after: DeviceEvent | None = None,
    ) -> Kept:
        """All is computed, once `after` has happened. With PUSHING, we tell the core when the pages
        may go.
        """
        with self._lock:
            request = self._requests.get(request_id)
            if request is None:
                return Kept.WAITS
            if request.done:
                del self._requests[request_id]
                return Kept.DONE
            request.kept = True
            request.context = Context(first_token, context)
            request.block_ids = block_ids
            # Also where it has happened: until its tokens are said, below, a look has nothing to compare.
            request.pending = True
            pushes = self._pushes_of(request)
        if after is None:
            self._all_computed(request, tokens)
        else:

            def happened(lost: TransferError | None) -> None:
                if lost is None:
                    self._all_computed(request, tokens)
                else:
                    self._lost(request, lost)

            self._later.run(after, happened)
        return Kept.PUSHING if pushes else Kept.WAITS

    def drop(self, request_id: str, why: str) -> bool:
        """Its pages shall go. True if they are still read from: the core hears when not.

        What is in flight may land for GRACE_SECONDS: the engine does not need the pages yet, or `break_off` comes.
        """
        with self._lock:
            request = self._requests.get(request_id)
            if request is None:
                return False
            pushes = self._joined(request)
            if not pushes:
                del self._requests[request_id]
                return False
            for push in pushes:
                push.sending.stop(HandOverError(Why.EXPIRED, why))
            request.dropped = True
            # What was computed anew and kept lingers with the rest.
            request.kept = False
            # Again, of one that is computed anew: what lingers are the pages that it had first.
            begins = request.lingering is None and not all(push.sending.over for push in pushes)
            if begins:
                request.lingering = len(request.block_ids)
                self._counters.add(lingering=request.lingering)
            lingers = request.lingering is not None
        if begins:
            self._give_time(request_id, pushes)
        for push in pushes:
            self._look(push)
        return lingers

    def break_off(self, request_id: str) -> None:
        """The pages of what was dropped are needed now: the engine must not wait for a peer that does not read.

        They are free at once where a write can be broken off.
        """
        with self._lock:
            request = self._requests.get(request_id)
            pushes = [] if request is None else self._joined(request)
        for push in pushes:
            push.cancel()

    def forget(self, request_id: str) -> bool:
        """It was read, or will not be. Whether the engine keeps its pages by what `kept` has told it."""
        with self._lock:
            request = self._requests.pop(request_id, None)
        return request is not None and request.kept

    def leave(self, push: OutgoingPush, error: HandOverError) -> None:
        """D does not want it any more, or is gone. Returns when nothing can land any more."""
        with self._lock:
            push.sending.stop(error)
        self._look(push)
        # Who gives up waits for its own blocks. Of one that has hung up the last write may have landed, or its
        # answer be on its way.
        if error.why in (Why.SILENT, Why.CANCELLED) or not push.over.wait(GRACE_SECONDS):
            push.cancel()
        push.over.wait()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            pushes = [push for of_key in self._pushes.values() for push in of_key]
            for push in pushes:
                push.sending.stop(HandOverError(Why.CLOSING, "the prefill engine is shutting down"))
        self._later.close()
        self._grace.close()
        # What it still writes ends with it, so that the pushes below are over.
        for mover in self._movers:
            mover.close()
        if self._outbox is not None:
            self._outbox.close()
        for push in pushes:
            self._look(push)
            if not push.over.wait(CLOSE_SECONDS):
                log.error("the push of %s does not end", push.asked.key)

    def _give_time(self, request_id: str, pushes: Sequence[OutgoingPush]) -> None:
        def late(_: Transfer | None = None) -> None:
            for push in pushes:
                push.cancel()

        rest = RunningTransfer(f"what is in flight of {request_id}", moves_bytes=False)
        rest.add_done_callback(late)
        try:
            self._grace.add(rest, GRACE_SECONDS)
        except RuntimeError:
            # There was no room for a thread, and without it they may stay for as long as D has asked.
            late()

    def _computed(
        self, request: PushRequest, layer: int, block_ids: Sequence[int], tokens: int
    ) -> None:
        """What waited for an event may come when the request has gone, or is further."""
        with self._lock:
            if self._requests.get(request.id) is not request or tokens <= request.tokens[layer]:
                return
            request.block_ids = block_ids
            request.tokens[layer] = tokens
            due = [
                (push, push.sending.computed(layer, tokens)) for push in self._pushes_of(request)
            ]
        for push, tiles in due:
            push.write(tiles, block_ids)

    def _all_computed(self, request: PushRequest, tokens: int) -> None:
        with self._lock:
            request.pending = False
            request.tokens = [tokens] * self._shape.layers
            pushes = self._pushes_of(request)
        for push in pushes:
            self._advance(push, request)

    def _lost(self, request: PushRequest, error: TransferError) -> None:
        """What it waited for is never going to happen."""
        with self._lock:
            request.lost = HandOverError(Why.BROKEN, f"prefill's pages are lost: {error}")
            pushes = self._pushes_of(request)
        for push in pushes:
            self._advance(push, request)

    def _meet(self, push: OutgoingPush) -> None:
        """Joins both sides, if both are there. Raises HandOverError: then it was refused."""
        with self._lock:
            if push.request is not None:
                # The other side was here first: what it claimed may be given up, or over, by now.
                return
            try:
                # With the lock: what is dropped between this and the next line would never be expected, and D
                # wait for its lease. Offers lock nothing of ours.
                request_id = self._offers.claim(push.asked.key, push, push.line.peer)
                if request_id is None and not push.asked.wait:
                    raise HandOverError(Why.UNKNOWN, f"nothing under {push.asked.key!r}")
            except HandOverError as error:
                refused: HandOverError | None = error
            else:
                found = self._requests.get(request_id or "")
                if found is None or push.sending.error is not None:
                    return
                request = found
                refused = request.error
                if push.asked.share.ranks & request.taken:
                    taken = HandOverError(Why.TAKEN, f"{push.asked.key!r} was handed over already")
                    refused = refused or taken
            if refused is None:
                push.request = request
                push.met_at = time.monotonic()
            else:
                self._remove(push)
                push.over.set()
        if refused is not None:
            # Also where the claim was refused: there may be one from before the request was known.
            if (given_up := self._offers.unclaim(push.asked.key, push)) is not None:
                self._abandoned(given_up)
            raise refused
        try:
            movers = dict(zip(self._ranks, self._movers, strict=True))
            way = push.way(movers, self._shape)
        except (OSError, TransferError) as error:
            with self._lock:
                push.sending.stop(HandOverError(Why.BROKEN, f"no mover: {error}"))
            self._look(push)
            return
        with self._lock:
            ended = push not in self._pushes.get(push.asked.key, ())
            if not ended:
                push.begin(way)
        if ended:
            way.close()
            return
        push.line.say(messages.Writing(self._shape, context=push.asked.slot is not None))
        self._advance(push, request)

    def _advance(self, push: OutgoingPush, request: PushRequest) -> None:
        """Sends whatever is ready."""
        with self._lock:
            if request.lost is not None:
                push.sending.stop(request.lost)
            due = push.due(request)
            needed = push.asked.tiles.tokens
            complete = request.kept and not request.pending
            if complete and min(request.tokens) < needed:
                push.sending.stop(
                    HandOverError(
                        Why.TOO_SHORT, f"{min(request.tokens)} tokens offered, {needed} needed"
                    )
                )
            context_due = complete and push.sending.finished()
        push.write(due, request.block_ids)
        if context_due:
            assert self._outbox is not None
            push.write_context(self._outbox, request.context)
        self._look(push)

    def _look(self, push: OutgoingPush) -> None:
        """Ends the push once, if nothing of it moves any more, and with the last its request."""
        others: list[OutgoingPush] = []
        last = False
        abandoned: str | None = None
        with self._lock:
            if not push.sending.over or push not in self._pushes.get(push.asked.key, ()):
                return
            self._remove(push)
            request, error = push.request, push.sending.error
            if request is not None:
                others = self._joined(request)
                last = self._ended(request, push, others)
        push.close()
        if request is not None:
            abandoned = self._offers.unclaim(push.asked.key, push)
            self._count(push, error, whole=last and request.taken >= push.asked.share.of)
        else:
            self._unmet(push)
        if error is not None:
            push.line.say(messages.Failed(error.why, error.message))
        # Last of what concerns D: its connection may be closed from now on.
        push.over.set()
        if request is not None and last:
            self._let_go(request, request.error)
        elif abandoned is not None:
            self._abandoned(abandoned)
        if error is not None:
            for other in others:
                self._look(other)

    def _ended(
        self, request: PushRequest, push: OutgoingPush, others: Sequence[OutgoingPush]
    ) -> bool:
        """Whether it was the last of the request. With the lock."""
        error, share = push.sending.error, push.asked.share
        if error is None:
            request.taken |= share.ranks
        else:
            request.error = request.error or error
            for other in others:
                other.sending.stop(error)
        if others:
            return False
        # No other may have a share of what was dropped.
        if request.error is None and not request.dropped and not request.taken >= share.of:
            return False
        request.done = request.error is None and not (request.kept or request.dropped)
        if not request.done:
            self._requests.pop(request.id, None)
        return True

    def _unmet(self, push: OutgoingPush) -> None:
        """D left before there was a request, or while the engine was telling us of it."""
        found = self._offers.abandon(push.asked.key, push.line.peer, push)
        if found is not None:
            request_id, _ = found
            self._core.abort(request_id)

    def _abandoned(self, request_id: str) -> None:
        """Its last push is over, and a share of it will never be asked for."""
        with self._lock:
            request = self._requests.get(request_id)
            if request is None or request.done:
                return
            del self._requests[request.id]
            request.error = request.error or HandOverError(Why.CANCELLED, GIVEN_UP)
        self._let_go(request, request.error)

    def _count(self, push: OutgoingPush, error: HandOverError | None, *, whole: bool) -> None:
        asked, shape = push.asked, self._shape
        tokens = range(asked.tiles.chunks[0].start, asked.tiles.tokens)
        self._counters.add(seconds_sending=time.monotonic() - push.met_at)
        if error is None:
            moving = shards.pairs(shape, asked.shape, asked.key, asked.between)
            moved = shards.moved_bytes(shape, asked.shape, tokens, moving)
            self._counters.add(sent=int(whole), bytes_sent=moved)
        else:
            self._counters.add(sends_failed=1)

    def _let_go(self, request: PushRequest, error: HandOverError | None) -> None:
        offered = False
        if error is None:
            self._offers.forget(request.id)
        else:
            # It may have been kept since the push was over, and then it was offered: to no peer now.
            offered = self._offers.drop(request.id, error.message).offered
        if (lingered := request.lingering) is not None:
            self._counters.add(lingering=-lingered)
            self._core.release(request.id)
        # What was computed anew is held beside what lingered, which the core takes first.
        if offered or request.kept:
            self._core.release(request.id)
        elif error is not None and not request.dropped:
            # What it computes is not going to be needed.
            self._core.abort(request.id)

    def _joined(self, request: PushRequest) -> list[OutgoingPush]:
        """The pushes that hand it over."""
        return [push for push in self._pushes.get(request.key, ()) if push.request is request]

    def _pushes_of(self, request: PushRequest) -> list[OutgoingPush]:
        """Those of them that have begun."""
        return [push for push in self._joined(request) if push.began]

    def _remove(self, push: OutgoingPush) -> None:
        left = [one for one in self._pushes.get(push.asked.key, ()) if one is not push]
        if left:
            self._pushes[push.asked.key] = left
        else:
            self._pushes.pop(push.asked.key, None)
