"""Execution of a call: an attempt, and others until one of them is its answer.

One attempt is a route (engines reserved), its legs, and the answer's first byte. Until
that byte is committed a failure leads to another attempt, with a fresh id and without
the engines that failed. Reservations, connections and the sibling leg live in blocks,
so they end with the attempt, and with the client, in whatever way it leaves.

    routing.py   -> Route: which engines        attempt.py    sends the legs of one
    retry.py     -> Again, Resume, GiveUp       kv_lease.py   holder of the KV
"""

from collections.abc import Callable

from pdgate.forwarders.attempt import Attempt, Deliver, Means
from pdgate.forwarders.base import Engines, Upstream
from pdgate.forwarders.kv_lease import KvLedger
from pdgate.forwarders.lives import Lives
from pdgate.forwarders.record import Record, Report
from pdgate.forwarders.resuming.resume import Resuming
from pdgate.forwarders.retry import FRESH, Again, Failure, GiveUp, RetryPolicy, RetryState, step
from pdgate.forwarders.route import Way
from pdgate.forwarders.routing import Router
from pdgate.protocols import request_id
from pdgate.protocols.call import Call
from pdgate.protocols.errors import (
    EngineFailed,
    EngineRefused,
    GatewayError,
    KvExpired,
    NoInstance,
)
from pdgate.protocols.instance import Instance


class Execution:
    """
    Attributes:
        router: Its `way_of` and `policy` may be replaced between attempts.
        max_resumes: Of one stream; 0 to resume none.
    """

    def __init__(
        self,
        engines: Engines,
        way_of: Callable[[Instance], Way],
        upstream: Upstream,
        *,
        policy: RetryPolicy,
        ledger: KvLedger | None = None,
        lives: Lives | None = None,
        max_resumes: int = 0,
    ) -> None:
        self._engines = engines
        self.router = Router(engines, way_of, policy)
        self._ledger = ledger or KvLedger()
        self._lives = lives or Lives()
        # Engines that were excused over a call, and on which no leg has ended well since.
        self._accused: set[str] = set()
        # Bound once, and not with each attempt.
        reported: Report = self._report
        self._means = Means(engines, self.router, upstream, self._ledger, self._lives, reported)
        self.max_resumes = max_resumes

    async def serve(self, call: Call, record: Record, deliver: Deliver) -> None:
        """Raises the GatewayError that the client is to see."""
        state = FRESH
        resuming = None
        if self.max_resumes:
            resuming = Resuming.of(call, record, deliver, self.max_resumes)
            if resuming is not None:
                call, deliver = resuming.call, resuming.deliver
        while True:
            record.attempts += 1
            attempt: Attempt | None = None
            try:
                route = self.router.route(call, state)
                record.path, record.protocol, record.mode = route.path, route.protocol, route.mode
                if route.decision is not None:
                    record.decisions[record.attempts] = route.decision
                attempt = Attempt(self._means, route, state, call, record, deliver)
                try:
                    await attempt.send()
                except BaseException as error:
                    attempt.end(error)
                    raise
                attempt.end(None)
                return
            except NoInstance as error:
                raise (state if attempt is None else attempt.state).first_cause or error from None
            except GatewayError as error:
                # Without an attempt nothing was sent, so the same call would fail in the same way.
                if attempt is None:
                    raise
                self._learn(error, attempt)
                if resuming is not None and resuming.is_refused(error, record):
                    call = resuming.without_ids()
                else:
                    call, state = self._next(error, attempt, resuming)
            call = record.call = call.retried(request_id.attempt(call.id))

    def _next(
        self, error: GatewayError, failed: Attempt, resuming: Resuming | None
    ) -> tuple[Call, RetryState]:
        """The call and the state of the next attempt. Raises what the client gets if none follows."""
        call, record = failed.call, failed.record
        committed = record.committed is not None
        why_not = None
        if committed and resuming is not None:
            why_not = record.not_resumed = resuming.why_not(error, failed.prefill)
        failure = Failure(
            error,
            call,
            failed.prefill,
            record.attempts,
            record.clock() - record.started,
            committed,
            why_not,
        )
        found = step(self.router.policy, self._accused, failed.state, failure)
        if isinstance(found, GiveUp):
            if found.excused:
                self._accused.update(found.excused)
                self._engines.excuse(found.excused)
            if committed and resuming is not None:
                raise resuming.cause or found.error
            raise found.error
        if isinstance(found, Again):
            if isinstance(error, KvExpired) and failed.kv is not None:
                call = failed.kv.apart(call, request_id.attempt(call.id))
            return call, found.state
        assert resuming is not None
        return resuming.rest(), found.state

    def gone(self, instance_id: str) -> None:
        """It refuses connections, so its process is gone: what it held, and the name that it had."""
        self._ledger.forget(instance_id)
        self._lives.refused(instance_id)

    def _report(self, instance: Instance, error: GatewayError | None) -> None:
        if error is None:
            if self._accused:
                self._accused.discard(instance.id)
        elif error.at and error.at != instance.id:
            # It waited for another engine, whose fault it is.
            return
        elif isinstance(error, EngineRefused):
            self.gone(instance.id)
        self._engines.report(instance, error)

    def _learn(self, error: GatewayError, failed: Attempt) -> None:
        failed.record.expired += isinstance(error, KvExpired)
        if failed.prefill and error.at != failed.prefill and type(error) is EngineFailed:
            self._lives.decode_failed(failed.prefill)
