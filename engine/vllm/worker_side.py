"""The half that lives in vLLM's worker: an engine core, as the hand-over code knows it.

    orders -> hand_over/ (plan, start, kept, dropped, cancel), on the worker's main thread
    hand_over/ -> loaded, release, submit_prefill, abort, on any thread -> reports, to vLLM

What our own engine's core does in its steps happens here in `obey` and `results`, which
vLLM calls in every one of its steps. Nothing in here blocks (but `evict`, which has to),
and whatever goes wrong with an order ends that request alone.

A prefill that D asked us for has two names: the hand-over's, and that of the request which
it became in vLLM (names.py). Of several workers the first one is asked; the others learn of it by
the request itself (passes.py). What D lends of its prompt is known by the first name, and read
under the second, for which vLLM waits.
"""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pdgate.engine.connector import Arrival, Connector, Core, Keep, Load, Pages
from pdgate.engine.hand_over.lending import borrowed, lent_by
from pdgate.engine.hand_over.two_sided import ForReaders
from pdgate.engine.leases import Lease, Leases
from pdgate.engine.vllm.intent import LENT, prefill_id
from pdgate.engine.vllm.names import Names
from pdgate.engine.vllm.orders import (
    AskedRequest,
    Borrow,
    CancelOrder,
    Drop,
    Evict,
    Fetch,
    Forgo,
    Hold,
    KeptBlocks,
    LetGo,
    Order,
    Progress,
    RefuseOrder,
)
from pdgate.engine.vllm.passes import Passes
from pdgate.engine.vllm.prefill_call import Failed, PromptCalls
from pdgate.engine.vllm.reports import Reports, Results
from pdgate.engine.vllm.step_end import Steps

SLOW_EVICTION_SECONDS = 5.0

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Fellows:
    """The other workers of our engine.

    Attributes:
        first: This is the one that speaks for all of them.
        keep_for: Has the hand-over hold a request's pages under a key, for these readers. Raises
            ValueError.
    """

    passes: Passes
    first: bool
    keep_for: Callable[[str, str, Sequence[str]], Keep]


class WorkerSide(Core):
    """
    Attributes:
        load_seconds: That requests have waited for their loads, all added up.
    """

    def __init__(
        self,
        connect: Callable[[Core], Connector],
        calls: Callable[[Failed], PromptCalls],
        block_tokens: int,
        now: Callable[[], float] = time.monotonic,
        fellows: Fellows | None = None,
        steps: Steps | None = None,
    ) -> None:
        """`fellows`: the engine's other workers, where there are any. `steps`: hear of each one's end."""
        self.load_seconds = 0.0
        self._fellows = fellows
        self._steps = steps or Steps()
        self._failed: set[str] = set()
        self._block_tokens = block_tokens
        self._now = now
        self._reports = Reports()
        self._names = Names()
        # One lock for what follows; a condition, because `evict` waits for readers.
        self._changed = threading.Condition()
        self._keeps: dict[str, Keep] = {}
        """Not kept yet. By the hand-over's name; a delegated one before vLLM knows of it."""
        self._loans: dict[str, Load] = {}
        """Of prefills in `_keeps`: what their decode engines lend, until it is being read."""
        self._leases = Leases()
        self._in_use: set[str] = set()
        """Dropped, but a reader is in the middle of its blocks."""
        self._started: dict[str, float] = {}
        self._computing: tuple[Progress, ...] = ()
        self._calls = calls(self._prefill_failed)
        self.connector = connect(self)

    # What vLLM's side calls, on the main thread.

    def obey(self, orders: Sequence[Order]) -> None:
        """Obey orders before the forward pass of the step that they came with."""
        self._computing = tuple(order for order in orders if isinstance(order, Progress))
        for order in orders:
            try:
                self._obey(order)
            # The hooks must not raise: vLLM would die with all its requests.
            except Exception:
                log.exception("order %r broke", order)

    def evict(self, orders: Sequence[Order]) -> None:
        """Blocks until no peer reads what vLLM is about to use for other requests.

        A write that is under way would carry the bytes of the others, and count as right. It is
        broken off, so this is short; one of a library that cannot ends when its peer reads or goes.
        Before anything of the step happens.
        """
        for order in orders:
            if isinstance(order, Evict):
                name = self._names.ours(order.id)
                self._drop(name, "preempted: the prefill engine ran out of blocks")
                self._calls.cancel(name)
                with self._changed:
                    in_use = name in self._in_use
                if in_use:
                    self._break_off(name)
                with self._changed:
                    while not self._changed.wait_for(
                        lambda name=name: name not in self._in_use,  # type: ignore[misc]
                        SLOW_EVICTION_SECONDS,
                    ):
                        log.warning("the engine waits for the reader of preempted %s", order.id)

    def computed(self, layer: int) -> None:
        """This layer's KV of the step is in its blocks."""
        for one in self._computing:
            name = self._names.ours(one.id)
            self.connector.layer_computed(name, layer, one.block_ids, one.tokens)

    def results(self) -> Results:
        """What ended since the last call; vLLM calls it when a step has been computed, or launched."""
        self._steps.over()
        with self._changed:
            ended = self._leases.take_ended(self._now())
            for lease in ended:
                self._in_use.add(lease.request_id)
        for lease in ended:
            self._refuse_readers(lease.request_id, "its lease ended")
            self._free(lease.request_id)
        results = self._reports.take()
        for request_id in results.sent:
            self._names.forget(request_id)
        return results

    def take_failed(self) -> frozenset[str]:
        """Loads that have failed here since the last call: other workers need not go on."""
        with self._changed:
            failed, self._failed = frozenset(self._failed), set()
        return failed

    @property
    def held_blocks(self) -> int:
        """Blocks that wait for a reader, or for the end of their lease."""
        with self._changed:
            return self._leases.blocks

    def close(self) -> None:
        self.connector.close()

    # What the hand-over calls, on any thread.

    def loaded(self, request_id: str, error: str | None = None) -> None:
        with self._changed:
            started = self._started.pop(request_id, None)
            if started is not None:
                self.load_seconds += self._now() - started
            if error is not None and self._fellows is not None:
                self._failed.add(request_id)
        self._reports.received(request_id, failed=error is not None)

    def gave_up(self, request_id: str, error: str) -> None:
        log.warning("KV of %s did not arrive, and may still: %s", request_id, error)
        if self._fellows is not None:
            with self._changed:
                self._failed.add(request_id)
        self._reports.failing(request_id)

    def release(self, request_id: str) -> None:
        with self._changed:
            self._leases.release(request_id)
            self._in_use.discard(request_id)
            self._changed.notify_all()
        self._free(request_id)

    def submit_prefill(
        self,
        request_id: str,
        prompt: Sequence[int],
        tokens: int,
        keep: Keep,
        load: Load | None = None,
    ) -> None:
        """Send a prefill to vLLM. What cannot be loaded of it vLLM computes: without that we are lent nothing."""
        params: dict[str, Any] = {}
        if self._fellows is not None and isinstance(keep.ticket, ForReaders):
            lent = lent_by(load) if load is not None else None
            params |= self._fellows.passes.issue(request_id, keep.ticket, lent)
        if load is not None:
            params[LENT] = load.tokens
        with self._changed:
            self._keeps[request_id] = keep
            if load is not None:
                self._loans[request_id] = load
        try:
            self._calls.start(request_id, prompt[:tokens], params)
        except ValueError:
            with self._changed:
                del self._keeps[request_id]
                self._loans.pop(request_id, None)
            raise

    def abort(self, request_id: str) -> None:
        """End a prefill of this worker's own; others are their client's."""
        self._calls.cancel(request_id)

    # Orders.

    def _obey(self, order: Order) -> None:
        match order:
            case Hold(asked):
                self._hold(asked)
            case KeptBlocks():
                self._kept(order)
            case Drop(request_id, why):
                self._reports.sending(request_id)
                self._drop(self._names.ours(request_id), why)
                self._free(self._names.ours(request_id))
            case Forgo(request_id, why):
                self._drop(self._names.ours(request_id), why)
                self._names.forget(request_id)
            case Evict():
                self.evict([order])
            case Progress():
                pass
            case Fetch():
                self._fetch(order)
            case LetGo(asked):
                self._let_go(asked)
            case CancelOrder(request_id):
                self.connector.cancel(request_id)
            case RefuseOrder(request_id, why):
                log.error("request %s fails: %s", request_id, why)
                self._reports.receiving(request_id)
                self._reports.received(request_id, failed=True)

    def _hold(self, asked: AskedRequest) -> None:
        name = prefill_id(asked.params)
        if name is not None:
            self._learn_of(name, asked)
            with self._changed:
                awaited = name in self._keeps
            if not awaited or not self._names.join(name, asked.id):
                log.info("%s is not held: nobody asked for prefill %s", asked.id, name)
            return
        try:
            plan = self.connector.plan(_arrival(asked))
        except ValueError as error:
            log.info("%s is computed, but not held: %s", asked.id, error)
            return
        if isinstance(plan, Keep):
            with self._changed:
                self._keeps[asked.id] = plan

    def _learn_of(self, name: str, asked: AskedRequest) -> None:
        """Of a prefill that the first worker was asked for."""
        fellows = self._fellows
        if fellows is None or fellows.first:
            return
        found = fellows.passes.read(name, asked.params)
        if found is None:
            return
        whose, lent = found
        try:
            load = borrowed(lent, len(asked.prompt), whose.readers[0]) if lent else None
            keep = fellows.keep_for(name, whose.key, whose.readers)
        except ValueError as error:
            log.info("%s is computed, but not held: %s", asked.id, error)
            return
        with self._changed:
            self._keeps[name] = keep
            if load is not None:
                self._loans[name] = load

    def _kept(self, order: KeptBlocks) -> None:
        name = self._names.ours(order.id)
        self._reports.sending(order.id)
        with self._changed:
            keep = self._keeps.pop(name, None)
            self._loans.pop(name, None)
            if keep is not None:
                # Before the connector may release it, from another thread.
                until = self._now() + keep.lease_seconds
                self._leases.hold(Lease(name, list(order.block_ids), until))
        if keep is None:
            self._free(name)
            return
        pages = Pages(order.block_ids, order.tokens)
        try:
            self.connector.kept(name, keep, pages, None, order.finish_reason)
        # Held blocks that no peer may read would be lost until the lease ends.
        except Exception:
            log.exception("%s could not be offered", order.id)
            with self._changed:
                self._leases.release(name)
                self._in_use.add(name)
            self._refuse_readers(name, "it could not be offered")
            self._free(name)

    def _fetch(self, order: Fetch) -> None:
        request_id = order.asked.id
        shared = order.skip_tokens // self._block_tokens
        self._reports.receiving(request_id, order.block_ids[shared:])
        with self._changed:
            self._started[request_id] = self._now()
        try:
            lent = isinstance(order, Borrow)
            plan = self._lent_to(request_id) if lent else self.connector.plan(_arrival(order.asked))
            if not isinstance(plan, Load) or plan.tokens != order.tokens:
                raise ValueError("its kv_transfer_params name nothing to load")
            pages = Pages(order.block_ids, order.tokens, order.skip_tokens)
            self.connector.start(request_id, plan, pages, order.skip_tokens)
        # A bug too fails this request alone; and vLLM waits for a report.
        except Exception as error:
            if isinstance(error, ValueError):
                log.warning("nothing is loaded for %s: %s", request_id, error)
            else:
                log.exception("load of %s could not start", request_id)
            self.connector.counters.failed += 1
            self.loaded(request_id, str(error))

    def _lent_to(self, request_id: str) -> Load | None:
        """None for a request that is not the prefill that we were asked for."""
        with self._changed:
            return self._loans.pop(self._names.ours(request_id), None)

    def _let_go(self, asked: AskedRequest) -> None:
        try:
            plan = self.connector.plan(_arrival(asked))
        except ValueError as error:
            log.info("%s is computed here: %s", asked.id, error)
            return
        if isinstance(plan, Load):
            pages = Pages((), plan.tokens)
            self.connector.start(asked.id, plan, pages, skip_tokens=plan.tokens)

    # Whose blocks may go.

    def _prefill_failed(self, name: str, why: str) -> None:
        """On a thread of the call's. The request may never have reached vLLM."""
        self._drop(name, why)

    def _drop(self, name: str, why: str) -> None:
        """Refuses its readers. Afterwards `_in_use` says whether one is still there."""
        with self._changed:
            self._loans.pop(name, None)
            if self._keeps.pop(name, None) is None:
                return
            self._in_use.add(name)
        self._refuse_readers(name, why)

    def _refuse_readers(self, name: str, why: str) -> None:
        """It is in use already: its last reader may leave, and release it, at any moment."""
        try:
            in_use = self.connector.dropped(name, why)
        # Nobody would release it, and a step that preempts it wait for ever.
        except Exception:
            log.exception("the connector could not drop %s", name)
            self._break_off(name)
            in_use = False
        if not in_use:
            with self._changed:
                self._in_use.discard(name)

    def _break_off(self, name: str) -> None:
        try:
            self.connector.break_off(name)
        # Its reader is still there, and has to be waited for.
        except Exception:
            log.exception("the connector could not break off %s", name)

    def _free(self, name: str) -> None:
        """vLLM may have its blocks back, unless a reader is in them: then `release` comes."""
        with self._changed:
            if name in self._in_use:
                return
        self._reports.sent(self._names.vllms(name))


def _arrival(asked: AskedRequest) -> Arrival:
    return Arrival(asked.id, asked.wire_id, asked.prompt, asked.params, {})
