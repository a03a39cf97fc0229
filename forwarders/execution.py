"""Attempts at a call, until one of them is its answer.

One attempt is a plan (engines reserved), its legs, and the answer's first byte. Until
that byte is committed a failure leads to another attempt, with a fresh id and without
the engines that failed. Reservations, connections and the sibling leg live in blocks,
so they end with the attempt, and with the client, in whatever way it leaves.

    execution   attempts, and the plan of each      attempt    sends the legs of one
    retrying    whether there is another            crossing   in which order
    tried       who has failed the call             ownership  who holds the KV
"""

from collections.abc import Awaitable, Callable
from typing import Final

from pdgate.forwarders.attempt import Attempt, Deliver
from pdgate.forwarders.base import Engines, Leg, Mode, Reserved, Upstream
from pdgate.forwarders.blame import Blame, verdict
from pdgate.forwarders.crossing import staged
from pdgate.forwarders.lives import Lives
from pdgate.forwarders.ownership import KvLedger, Ownership
from pdgate.forwarders.record import (
    DECODE_ONLY,
    DISAGGREGATED,
    LOCAL,
    PLAIN,
    PREFILL_ONLY,
    Record,
    Report,
)
from pdgate.forwarders.resuming.resume import Resuming
from pdgate.forwarders.retrying import Retrying
from pdgate.forwarders.splitting import decide
from pdgate.forwarders.tried import Tried
from pdgate.forwarders.way import Way
from pdgate.protocols import request_id
from pdgate.protocols.apis import Api, Kind
from pdgate.protocols.call import Call
from pdgate.protocols.errors import (
    EngineFailed,
    EngineRefused,
    GatewayError,
    GenerationsDiffer,
    KvExpired,
    NoInstance,
    NotServed,
)
from pdgate.protocols.instance import DECODE, PREFILL, Instance, Role
from pdgate.scheduling.disaggregation import Decision, Taken
from pdgate.scheduling.disaggregation.decision import NO_PREFILL

# For what is done with every call (protocols/members.py).
_SPLIT: Final = Taken.SPLIT
_PREFILL_ONLY: Final = Taken.PREFILL_ONLY
_STAGED: Final = Mode.STAGED
_GENERATES: Final = Kind.GENERATES
_PLAIN: Final = Role.PLAIN
_NO_PREFILL: Final = Decision(Taken.LOCAL, NO_PREFILL)
_ALL_ROLES: Final = (Role.PLAIN, Role.DECODE, Role.PREFILL)
_MAY_HAVE: Final = {
    Kind.GENERATES: (Role.PLAIN, Role.DECODE),
    Kind.READS: (Role.PLAIN,),
    Kind.COUNTS: _ALL_ROLES,
    Kind.PASSES: _ALL_ROLES,
}
_NOT_SERVED: Final = {
    Kind.GENERATES: "no engine of this model can serve this route alone",
    Kind.READS: "no plain engine serves this model, and this route needs one",
    Kind.COUNTS: "no engine serves this route",
    Kind.PASSES: "no engine serves this route",
}


class Execution:
    def __init__(
        self,
        engines: Engines,
        way_of: Callable[[Instance], Way],
        upstream: Upstream,
        *,
        retrying: Retrying | None = None,
        ledger: KvLedger | None = None,
        lives: Lives | None = None,
        max_resumes: int = 0,
    ) -> None:
        self._engines = engines
        self.way_of = way_of
        self._upstream = upstream
        self.retrying = retrying or Retrying()
        self._ledger = ledger or KvLedger()
        self._lives = lives or Lives()
        self._blame = Blame()
        # Bound once, and not with each attempt.
        self._reported: Report = self._report
        self.max_resumes = max_resumes

    async def serve(self, call: Call, record: Record, deliver: Deliver) -> None:
        """Raises the GatewayError that the client is to see."""
        tried = Tried()
        resuming = None
        if self.max_resumes:
            resuming = Resuming.of(call, record, deliver, self.max_resumes)
            if resuming is not None:
                call, deliver = resuming.call, resuming.deliver
        while True:
            record.attempts += 1
            attempt = Attempt(
                self._engines,
                self._upstream,
                call,
                record,
                deliver,
                tried,
                self._lives,
                self._reported,
            )
            try:
                try:
                    await self._make(attempt)
                except BaseException as error:
                    attempt.end(error)
                    raise
                attempt.end(None)
                return
            except NoInstance as error:
                raise tried.first_cause or error from None
            except GatewayError as error:
                self._learn(error, attempt)
                if resuming is not None and resuming.is_for(error, record):
                    call = resuming.next(error, attempt)
                else:
                    self._retry(error, attempt)
                    if isinstance(error, KvExpired) and attempt.kv is not None:
                        call = attempt.kv.apart(call, request_id.attempt(call.id))
            call = record.call = call.retried(request_id.attempt(call.id))

    def _retry(self, error: GatewayError, failed: Attempt) -> None:
        """Raises what the client gets if there is no other attempt."""
        self.retrying.next(error, failed)
        broken = failed.tried.broken
        if broken and self._blame.is_on_call(broken):
            self._engines.excuse(broken)
            raise verdict(error)

    def gone(self, instance_id: str) -> None:
        """It refuses connections, so its process is gone: what it held, and the name that it had."""
        self._ledger.forget(instance_id)
        self._lives.refused(instance_id)

    def _report(self, instance: Instance, error: GatewayError | None) -> None:
        if error is None:
            if self._blame.accusing:
                self._blame.worked(instance.id)
        elif isinstance(error, EngineRefused):
            self.gone(instance.id)
        self._engines.report(instance, error)

    def _learn(self, error: GatewayError, failed: Attempt) -> None:
        failed.record.expired += isinstance(error, KvExpired)
        if failed.prefill and error.at != failed.prefill and type(error) is EngineFailed:
            self._lives.decode_failed(failed.prefill)

    def _make(self, attempt: Attempt) -> Awaitable[None]:
        """Chooses engines, which are the attempt's until it ends; returns the way over them.

        A function and not a coroutine, as there is nothing to wait for until the first leg is sent.
        """
        call, record = attempt.call, attempt.record
        if call.api is not None and (call.at or call.api.kind is not _GENERATES):
            return self._whole(attempt, call.api)
        if not self._engines.disaggregates(call):
            plain = attempt.answering = attempt.reserve(_PLAIN)
            _note_path(record, PLAIN, plain.instance, "")
            leg = self.way_of(plain.instance).forwarder.local(call, plain.instance)
            return attempt.answer(leg, _PLAIN, plain)
        if attempt.tried.without_prefill:
            decode = self._stand_in(attempt)
            if decode is not None:
                return self._without_prefill(attempt, decode)
        try:
            prefill = attempt.reading = attempt.reserve(PREFILL)
        except GenerationsDiffer:
            # No engine is missing that would come back: decode would read all prompts for ever.
            raise
        except NoInstance:
            decode = self._stand_in(attempt) if self.retrying.decode_stands_in else None
            if decode is None:
                raise
            return self._without_prefill(attempt, decode)
        engine, way_of = prefill.instance, self.way_of
        way = way_of(engine)
        decision = decide(self._engines, way, call, engine)
        record.decisions[record.attempts] = decision
        if decision.taken is not _SPLIT:
            return self._on_one(way, attempt, prefill, decision.taken)
        record.path, record.protocol, record.mode = DISAGGREGATED, engine.protocol, way.mode
        attempt.prefill = engine.id
        if way.kv is not None:
            attempt.kv = Ownership(way.kv, engine.id, self._ledger)
        if way.mode is _STAGED:
            return staged(way.forwarder, attempt, prefill)
        decode = attempt.answering = attempt.reserve(DECODE, engine)
        cross = way.cross
        return cross(way.forwarder, attempt, prefill, decode)

    def _on_one(
        self, way: Way, attempt: Attempt, prefill: Reserved, taken: Taken
    ) -> Awaitable[None]:
        """On the prefill engine that was chosen, or on a decode engine that is its peer."""
        call, record, engine = attempt.call, attempt.record, prefill.instance
        if taken is _PREFILL_ONLY:
            _note_path(record, PREFILL_ONLY, engine, way.mode)
            attempt.prefill = engine.id
            return attempt.answer(Leg(engine, call.path, call.body), PREFILL, prefill)
        _note_path(record, LOCAL, engine, way.mode)
        prefill.withdraw()
        if call.api is not None and not way.decode_can_prefill:
            return self._whole(attempt, call.api)
        decode = attempt.answering = attempt.reserve(DECODE, engine, reads=True)
        leg = way.forwarder.local(call, decode.instance)
        return attempt.answer(leg, DECODE, decode)

    def _whole(self, attempt: Attempt, api: Api) -> Awaitable[None]:
        """On one engine, by whichever there is that can have it."""
        one = attempt.answering = self._one(attempt, api.kind)
        _note_path(attempt.record, PLAIN, one.instance, "")
        call = attempt.call
        if api.kind is _GENERATES:
            leg = self.way_of(one.instance).forwarder.local(call, one.instance)
        else:
            leg = Leg(one.instance, call.path, call.body, passed=call.passed)
        return attempt.answer(leg, _PLAIN, one)

    def _one(self, attempt: Attempt, kind: Kind) -> Reserved:
        """Raises NotServed, NoInstance."""
        call = attempt.call
        found: NoInstance | None = None
        reads = kind in (Kind.GENERATES, Kind.READS)
        for role in _ALL_ROLES if call.at else _MAY_HAVE[kind]:
            if not self._engines.has(role, call):
                continue
            try:
                if role is DECODE and kind is Kind.GENERATES and not call.at:
                    one = self._stand_in(attempt)
                    if one is not None:
                        return one
                    continue
                return attempt.reserve_any(role, reads=reads)
            except NoInstance as error:
                found = found or error
        raise found or NotServed(_NOT_SERVED[kind], at="")

    def _without_prefill(self, attempt: Attempt, decode: Reserved) -> Awaitable[None]:
        attempt.answering = decode
        record = attempt.record
        way = self.way_of(decode.instance)
        record.decisions[record.attempts] = _NO_PREFILL
        _note_path(record, DECODE_ONLY, decode.instance, way.mode)
        leg = way.forwarder.local(attempt.call, decode.instance)
        return attempt.answer(leg, DECODE, decode)

    def _stand_in(self, attempt: Attempt) -> Reserved | None:
        """A decode engine that can read a prompt; those of some protocols cannot."""
        cannot: set[str] = set()
        while True:
            try:
                decode = attempt.reserve_alone(cannot)
            except NoInstance:
                return None
            if self.way_of(decode.instance).decode_can_prefill:
                return decode
            decode.withdraw()
            cannot.add(decode.instance.id)


def _note_path(record: Record, path: str, at: Instance, mode: str) -> None:
    record.path, record.protocol, record.mode = path, at.protocol, mode
