"""The half that lives in vLLM's worker: an engine core, as the hand-over code knows it.

    orders -> hand_over/ (plan, start, kept, dropped, cancel), on the worker's main thread
    hand_over/ -> loaded, release, submit_prefill, abort, on any thread -> reports, to vLLM

What our own engine's core does in its steps happens here in `obey` and `results`, which
vLLM calls in every one of its steps. Nothing in here blocks, and whatever goes wrong with
an order ends that request alone.

A prefill that D asked us for has two names: the hand-over's, and that of the request which
it became in vLLM.
"""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from pdgate.engine.connector import Arrival, Connector, Core, Keep, Load, Pages
from pdgate.engine.leases import Lease, Leases
from pdgate.engine.vllm.intent import prefill_id
from pdgate.engine.vllm.orders import Asked, Cancel, Drop, Fetch, Hold, Kept, LetGo, Order, Refuse
from pdgate.engine.vllm.reports import Reports, Results

log = logging.getLogger(__name__)


class PrefillCalls(Protocol):
    """Has our own engine compute a prompt (prefill_call.py)."""

    def start(self, prefill_id: str, prompt: Sequence[int]) -> None:
        """Raises ValueError if this engine cannot."""

    def cancel(self, prefill_id: str) -> None: ...


class WorkerSide(Core):
    def __init__(
        self,
        connect: Callable[[Core], Connector],
        calls: Callable[[Callable[[str, str], None]], PrefillCalls],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """`calls` is given what to call, with id and reason, when a prefill failed."""
        self._reports = Reports()
        self._now = now
        self._lock = threading.Lock()
        self._keeps: dict[str, Keep] = {}
        """By the hand-over's name; a delegated one is here before vLLM knows of it."""
        self._delegated: dict[str, str] = {}
        """vLLM's id -> the hand-over's, and back."""
        self._vllm_ids: dict[str, str] = {}
        self._leases = Leases()
        self._calls = calls(self._prefill_failed)
        self.connector = connect(self)
        self.transfer_seconds = 0.0
        self._started: dict[str, float] = {}

    # What vLLM's side calls, on the main thread.

    def obey(self, orders: Sequence[Order]) -> None:
        for order in orders:
            try:
                self._obey(order)
            # The hooks must not raise: vLLM would die with all its requests.
            except Exception:
                log.exception("order %r broke", order)

    def results(self) -> Results:
        """What ended since the last call."""
        for lease in self._ended_leases():
            self.connector.dropped(lease.request_id, "its lease ended")
            self._sent(lease.request_id)
        return self._reports.take()

    @property
    def held_blocks(self) -> int:
        """Blocks that wait for a reader, or for the end of their lease."""
        with self._lock:
            return self._leases.blocks

    def close(self) -> None:
        self.connector.close()

    # What the hand-over calls, on any thread.

    def loaded(self, request_id: str, error: str | None = None) -> None:
        self._count_seconds(request_id)
        self._reports.received(request_id, failed=error is not None)

    def gave_up(self, request_id: str, error: str) -> None:
        """vLLM has no state for this: it hears of the failure with `loaded`, once."""
        log.info("load of %s failed: %s", request_id, error)

    def release(self, request_id: str) -> None:
        with self._lock:
            self._leases.release(request_id)
        self._sent(request_id)

    def submit_prefill(
        self, request_id: str, prompt: Sequence[int], tokens: int, keep: Keep
    ) -> None:
        with self._lock:
            self._keeps[request_id] = keep
        try:
            self._calls.start(request_id, prompt[:tokens])
        except ValueError:
            with self._lock:
                del self._keeps[request_id]
            raise

    def abort(self, request_id: str) -> None:
        """Only a prefill of our own can be ended from here; others are their client's."""
        self._calls.cancel(request_id)

    # Orders.

    def _obey(self, order: Order) -> None:
        match order:
            case Hold(asked):
                self._hold(asked)
            case Kept():
                self._kept(order)
            case Drop(request_id, why):
                self._drop(request_id, why)
            case Fetch():
                self._fetch(order)
            case LetGo(asked):
                self._let_go(asked)
            case Cancel(request_id):
                self.connector.cancel(request_id)
            case Refuse(request_id, why):
                log.error("request %s fails: %s", request_id, why)
                self._reports.receiving(request_id)
                self._reports.received(request_id, failed=True)

    def _hold(self, asked: Asked) -> None:
        name = prefill_id(asked.params)
        if name is not None:
            with self._lock:
                if name in self._keeps and name not in self._vllm_ids:
                    self._delegated[asked.id] = name
                    self._vllm_ids[name] = asked.id
                    return
            log.info("%s is not held: nobody asked for prefill %s", asked.id, name)
            return
        try:
            plan = self.connector.plan(_arrival(asked))
        except ValueError as error:
            log.info("%s is computed, but not held: %s", asked.id, error)
            return
        if isinstance(plan, Keep):
            with self._lock:
                self._keeps[asked.id] = plan

    def _kept(self, order: Kept) -> None:
        name = self._name(order.id)
        self._reports.sending(order.id)
        with self._lock:
            keep = self._keeps.pop(name, None)
            if keep is not None:
                # Before the connector may release it, from another thread.
                until = self._now() + keep.lease_seconds
                self._leases.hold(Lease(name, list(order.block_ids), until))
        if keep is None:
            self._sent(name)
            return
        pages = Pages(order.block_ids, order.tokens)
        try:
            self.connector.kept(name, keep, pages, None, order.finish_reason)
        # Held blocks that nobody may read would be lost until the lease ends.
        except Exception:
            log.exception("%s could not be offered", order.id)
            self.connector.dropped(name, "it could not be offered")
            self.release(name)

    def _drop(self, vllm_id: str, why: str) -> None:
        name = self._name(vllm_id)
        self._reports.sending(vllm_id)
        with self._lock:
            planned = self._keeps.pop(name, None) is not None
        if planned:
            self.connector.dropped(name, why)
        self._sent(name)

    def _fetch(self, order: Fetch) -> None:
        request_id = order.asked.id
        self._reports.receiving(request_id)
        with self._lock:
            self._started[request_id] = self._now()
        try:
            plan = self.connector.plan(_arrival(order.asked))
            if not isinstance(plan, Load) or plan.tokens != order.tokens:
                raise ValueError("its kv_transfer_params name nothing to load")
            pages = Pages(order.block_ids, order.tokens, order.skip_tokens)
            self.connector.start(request_id, plan, pages, order.skip_tokens)
        # A bug too fails this request alone; and vLLM waits for a report.
        except Exception as error:
            if isinstance(error, ValueError):
                log.info("request %s fails: %s", request_id, error)
            else:
                log.exception("load of %s could not start", request_id)
            self.connector.counters.failed += 1
            self.loaded(request_id, str(error))

    def _let_go(self, asked: Asked) -> None:
        try:
            plan = self.connector.plan(_arrival(asked))
        except ValueError as error:
            log.info("%s is computed here: %s", asked.id, error)
            return
        if isinstance(plan, Load):
            pages = Pages((), plan.tokens)
            self.connector.start(asked.id, plan, pages, skip_tokens=plan.tokens)

    # Names and leases.

    def _prefill_failed(self, name: str, why: str) -> None:
        """On a thread of the call's. The request may never have reached vLLM."""
        with self._lock:
            waiting = self._keeps.pop(name, None) is not None
        if waiting:
            self.connector.dropped(name, why)

    def _name(self, vllm_id: str) -> str:
        with self._lock:
            return self._delegated.get(vllm_id, vllm_id)

    def _sent(self, name: str) -> None:
        with self._lock:
            vllm_id = self._vllm_ids.get(name, name)
        self._reports.sent(vllm_id)
        self._forget(name)

    def _forget(self, name: str) -> None:
        with self._lock:
            vllm_id = self._vllm_ids.pop(name, None)
            if vllm_id is not None:
                del self._delegated[vllm_id]

    def _ended_leases(self) -> list[Lease]:
        with self._lock:
            return self._leases.take_ended(self._now())

    def _count_seconds(self, request_id: str) -> None:
        with self._lock:
            started = self._started.pop(request_id, None)
            if started is not None:
                self.transfer_seconds += self._now() - started


def _arrival(asked: Asked) -> Arrival:
    return Arrival(asked.id, asked.wire_id, asked.prompt, asked.params, {})
