"""Execution of a call: an attempt, and others until one of them is its answer.

One attempt is a route (engines reserved), its legs, and the answer's first byte. Until
that byte is committed a failure leads to another attempt, with a fresh id and without
the engines that failed. Reservations, connections and the sibling leg live in blocks,
so they end with the attempt, and with the client, in whatever way it leaves.

    routing.py   -> Route: which engines        kv_lease.py    holder of the KV
    retry.py     -> Again, Resume, GiveUp       first_event.py what begins well

The legs of an attempt, in the order of its protocol:

    media         encoded before the call's turn, and again after a failure, whatever comes then (encoding.py)
    one engine    answer
    hand off      ask prefill, then answer by decode
    staged        the same, and decode is chosen when prefill has answered
    rendezvous    both at once; a failed prefill ends decode's leg, which for Mooncake would wait minutes
    delegate      answer by decode, which asks prefill itself
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

import msgspec

from pdgate.forwarders.ahead import Ahead, at_once
from pdgate.forwarders.base import (
    Delegation,
    Engines,
    HandOff,
    Leg,
    Rendezvous,
    Reserved,
    Upstream,
)
from pdgate.forwarders.beside import beside, unless_failed
from pdgate.forwarders.body_filter import WatchedBody
from pdgate.forwarders.early import why_not_early
from pdgate.forwarders.encoding import EncodeStage
from pdgate.forwarders.first_event import WHOLE_BYTES, good_start, good_whole
from pdgate.forwarders.first_token import FirstTokensDiffer, FirstTokenStream
from pdgate.forwarders.joins import Joins
from pdgate.forwarders.kv_lease import RELEASED, KvLease, KvLedger
from pdgate.forwarders.lives import Lives
from pdgate.forwarders.merged import Merging
from pdgate.forwarders.other_apis import named
from pdgate.forwarders.pausing import Pausing
from pdgate.forwarders.read_back import ChatTurn, KvReadBack, TurnStore
from pdgate.forwarders.record import (
    DISAGGREGATED,
    PREFILL_ONLY,
    Deliver,
    LegRecord,
    Record,
    Trace,
)
from pdgate.forwarders.releases import Releases
from pdgate.forwarders.resuming.gathered import GatheringRoom
from pdgate.forwarders.resuming.resume import Resuming
from pdgate.forwarders.retry import (
    FRESH,
    Again,
    Failure,
    GiveUp,
    RetryPolicy,
    RetryState,
    may_be_over_kv,
    noted,
    step,
)
from pdgate.forwarders.route import Route, Way
from pdgate.forwarders.routing import Router
from pdgate.forwarders.token_ids import LONG_TOKENS, asking, handed_on, may_have_ids
from pdgate.forwarders.unseen import UnseenReads, comes_whole
from pdgate.protocols import named_events, openai, request_id
from pdgate.protocols.call import Call, Json
from pdgate.protocols.errors import (
    EngineFailed,
    EngineGaveUp,
    EngineRefused,
    EngineTooSlow,
    GatewayError,
    GaveWay,
    KvExpired,
    NoInstance,
)
from pdgate.protocols.instance import DECODE, PREFILL, Instance, Role
from pdgate.scheduling.watch import StreamWatch

log = logging.getLogger(__name__)

MOST_DIFFERING: Final = 64
"""Routes and models; beyond them no stream is committed early any more."""

Begun = Callable[[float], StreamWatch | None]
"""Called when a stream begins, with the seconds since its leg; returns the watch of its pace."""


class Execution:
    """
    Attributes:
        router: Its `way_of` and `policy` may be replaced between attempts.
        max_resumes: Of one stream; 0 to resume none.
        encoding: Encodes media before anything else; None where no engine does that.
        joins: Pairs of engines that know each other, where their protocol wants that.
        releases: What is said to prefill engines behind a call.
        read_back: What decode engines have of earlier turns; None where it is not read back.
        told_ids: Called with a chat of which prefill was asked for the token ids, and with its answer.
        early_first_token: Whether a stream is committed on prefill's token, where that is safe.
        differing: Routes and models of which decode's first token was another one; theirs are not, any more.
        room: Memory for answers that are put together of streams; None for as much as they take.
        unseen: Prompts of answers that come whole.
        accused: Engines that were excused over a call, and on which no leg has ended well since; whether only
            one of a hand-over counts.
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
        early_first_token: bool = False,
        read_back: bool = False,
        turns: TurnStore | None = None,
    ) -> None:
        """`turns`: of all workers, for reading back."""
        self.engines = engines
        self.router = Router(engines, way_of, policy)
        self.upstream = upstream
        self.ledger = ledger or KvLedger()
        self.lives = lives or Lives()
        self.joins = Joins(upstream, self.failed)
        self.releases = Releases(upstream, self.ledger)
        self.encoding: EncodeStage | None = None
        self._turns = turns
        self.read_back: KvReadBack | None = None
        self.read_back_is(read_back)
        self.told_ids: Callable[[Call, Json], None] | None = None
        self.room: GatheringRoom | None = None
        self.unseen = UnseenReads()
        self.accused: dict[str, bool] = {}
        self.max_resumes = max_resumes
        self.early_first_token = early_first_token
        self.differing: set[tuple[str, str | None]] = set()

    def read_back_is(self, wanted: bool) -> None:
        """From the next attempt on; what is known of turns ends with it."""
        if not wanted:
            self.read_back = None
        elif self.read_back is None:
            self.read_back = KvReadBack(self.upstream, shared=self._turns)

    async def serve(
        self,
        call: Call,
        record: Record,
        deliver: Deliver,
        state: RetryState = FRESH,
        pausing: Pausing | None = None,
    ) -> None:
        """`pausing`: of a call that may give way to others. Raises the GatewayError that the client is to see.

        Engines are reserved at once, so the call's media have been encoded.
        """
        resuming, failed = None, False
        record.attempts = 1
        if self.max_resumes or pausing is not None:
            most = self.max_resumes or self.router.policy.max_attempts
            resuming = Resuming.of(
                call, record, deliver, most, gathers=pausing is not None, room=self.room
            )
            if resuming is not None:
                call, deliver = resuming.call, resuming.deliver
        while True:
            paused = False
            attempt: Attempt | None = None
            try:
                encoding = self.encoding
                if failed and encoding is not None and encoding.wants(call):
                    # As it is not known whether the engine still has it.
                    call = await encoding.encoded(call, record)
                route = self.router.route(call, state)
                record.path, record.protocol, record.mode = route.path, route.protocol, route.mode
                if route.decision is not None:
                    record.decisions[record.attempts] = route.decision
                attempt = Attempt(self, route, state, call, record, deliver, resuming is None)
                if pausing is not None and resuming is not None:
                    pausing.begins(attempt, record, resuming)
                try:
                    await attempt.send()
                except BaseException as error:
                    attempt.end(error)
                    paused = pausing is not None and pausing.ended(error)
                    if not paused:
                        raise
                if not paused:
                    kv = attempt.kv
                    if (
                        attempt.answering is not None
                        or attempt.reading is not None
                        or (kv is not None and kv.state is not RELEASED)
                        or attempt.keeps
                    ):
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
            if paused and pausing is not None and resuming is not None:
                call = resuming.later(record)
                await pausing.wait()
            failed = not paused
            record.attempts += 1
            call = record.call = call.retried(request_id.attempt(call.id))
            if resuming is not None:
                record.call = resuming.as_asked(call)

    def _next(
        self, error: GatewayError, failed: "Attempt", resuming: Resuming | None
    ) -> tuple[Call, RetryState]:
        """The call and the state of the next attempt. Raises what the client gets if none follows."""
        call, record = failed.call, failed.record
        committed = record.committed is not None
        why_not, policy = None, self.router.policy
        left = policy.max_attempts - (record.attempts - len(record.pauses))
        over_kv = may_be_over_kv(error, failed.prefill) and not record.is_answering
        if resuming is not None:
            committed = resuming.has_begun(record)
            if committed:
                # An engine may do better without the hand-over, and is asked next.
                untold = (
                    over_kv
                    and not (isinstance(error, EngineFailed) and error.broke_off)
                    and policy.decode_stands_in
                    and failed.route.way.decode_can_prefill
                    and not failed.state.without_prefill
                )
                why_not = record.not_resumed = resuming.why_not(error, failed.prefill, untold)
                if not why_not:
                    left = resuming.left
                elif resuming.begins_anew():
                    call, committed, why_not = resuming.call, False, None
        # That it gave way is no failure; and neither its pauses nor its wait for room are time that engines took.
        waited = record.paused_seconds + (record.queued_seconds or 0.0)
        failure = Failure(
            error,
            call,
            failed.prefill,
            failed.route.path == DISAGGREGATED,
            over_kv,
            failed.route.way.decode_can_prefill,
            left,
            record.clock() - record.started - waited,
            committed,
            why_not,
        )
        found = step(policy, self.accused, failed.state, failure)
        if isinstance(found, GiveUp):
            if found.excused:
                self.accused.update(dict.fromkeys(found.excused, found.at_hand_over))
                self.engines.excuse(found.excused)
            if committed and resuming is not None:
                raise resuming.cause or found.error
            raise found.error
        if isinstance(error, KvExpired) and failed.kv is not None:
            word = request_id.attempt(call.id)
            call = failed.kv.apart(call, word)
            if resuming is not None:
                resuming.asks_apart(failed.kv, word)
        if isinstance(found, Again):
            return call, found.state
        assert resuming is not None
        return resuming.rest(), found.state

    def gone(self, instance_id: str) -> None:
        """It refuses connections, so its process is gone: what it held, and the name that it had."""
        self.ledger.forget(instance_id)
        self.lives.refused(instance_id)
        self.joins.gone(instance_id)
        if self.read_back is not None:
            self.read_back.forget(instance_id)

    def left(self, instance_id: str) -> None:
        """It is none of the fleet any more, and what comes by its name later is another one."""
        self.accused.pop(instance_id, None)
        self.ledger.left(instance_id)

    def failed(self, instance: Instance, error: GatewayError) -> None:
        """A leg there ended with this."""
        if error.at and error.at != instance.id:
            # It waited for another engine, whose fault it is.
            return
        if isinstance(error, FirstTokensDiffer | GaveWay):
            # It answers as it always does.
            return
        if isinstance(error, EngineRefused):
            self.gone(instance.id)
        self.engines.report(instance, error)

    def _learn(self, error: GatewayError, failed: "Attempt") -> None:
        failed.record.expired += isinstance(error, KvExpired)
        if isinstance(error, FirstTokensDiffer):
            self._differ(failed.call)
        if failed.prefill and error.at != failed.prefill and type(error) is EngineFailed:
            self.lives.decode_failed(failed.prefill)
            self.joins.doubt(failed.prefill, error.at)

    def _differ(self, call: Call) -> None:
        what = call.path, call.model
        if not self.early_first_token or what in self.differing:
            return
        self.differing.add(what)
        if len(self.differing) >= MOST_DIFFERING:
            self.early_first_token = False
        log.warning(
            "prefill's first token was not decode's, so streams of %s of the model %s wait for "
            "decode from now on (early_first_token)",
            *what,
        )


class Attempt:
    """It ends, once, with what its legs end with: then its engines are free, and the KV is let go of.

    Attributes:
        call: As it is sent this time, under an id of its own.
        state: What failed before it, and while it chose decode.
        reading: Of the prefill engine, until it has read; None where none was chosen.
        answering: The same of the engine whose answer is the client's, where it was chosen before.
        prefill: The id of the engine chosen to read the prompt for decode; empty for none.
        kv: The KV that prefill keeps for decode; None where none is kept.
        keeps: Prefill may keep KV until the gateway releases it.
    """

    __slots__ = (
        "_asked", "_early", "_execution", "_kept", "_read_at", "answering", "call", "deliver", "keeps", "kv", "prefill",
        "reading", "record", "route", "state",
    )  # fmt: skip

    def __init__(
        self,
        execution: Execution,
        route: Route,
        state: RetryState,
        call: Call,
        record: Record,
        deliver: Deliver,
        early: bool = True,
    ) -> None:
        """`early`: the client's answer may begin with prefill's token."""
        self._early = early
        self._execution = execution
        self.route = route
        self.state = state
        self.call = call
        self.record = record
        self.deliver = deliver
        reading = self.reading = route.prefill
        self.answering = route.answering
        self.prefill = "" if reading is None else reading.instance.id
        self.kv: KvLease | None = None
        self._kept = route.way.kv if route.path == DISAGGREGATED else None
        # When prefill had answered; 0 before that.
        self._read_at = 0.0
        self.keeps = False
        # Of decode, where prefill may keep something.
        self._asked: Leg | None = None

    def send(self) -> Awaitable[None]:
        """Sends its legs, and relays the answer to its end. Raises GatewayError.

        A function and not a coroutine, as there is nothing to wait for until the first leg is sent.
        """
        route = self.route
        leg, prefill, answering = route.leg, route.prefill, route.answering
        if leg is not None:
            one = prefill if answering is None else answering
            assert one is not None
            # One token is there when the prompt has been read.
            if comes_whole(self.call) and route.path != PREFILL_ONLY:
                self._execution.unseen.expect(one.reading_seconds, one.presume_read)
            return self._answer(leg, route.role, one)
        way = route.way
        if prefill is not None and way.hand_off is not None:
            return self._hand_off(way.hand_off, prefill)
        if prefill is not None and answering is not None:
            if way.rendezvous is not None:
                return self._rendezvous(way.rendezvous, prefill, answering)
            if way.delegation is not None:
                return self._delegate(way.delegation, prefill, answering)
        raise TypeError(f"{way.forwarder.name} has no way to cross two engines in this mode")

    def end(self, error: BaseException | None) -> None:
        """`error`: what its legs ended with; None if the answer is whole."""
        # One in the other, so that what goes wrong with one of them keeps none of the others.
        try:
            answering = self.answering
            if answering is not None:
                answering.end() if error is None else answering.withdraw()
        finally:
            try:
                reading = self.reading
                if reading is not None:
                    reading.end() if error is None else reading.withdraw()
            finally:
                kv = self.kv
                # Most often decode has it by now.
                taken = kv is not None and kv.state is RELEASED
                if kv is not None and not taken:
                    clock = self.record.clock
                    kv.end(error, clock())
                if self.keeps:
                    self._release(error, taken)

    def _release(self, error: BaseException | None, taken: bool) -> None:
        """Release the KV at prefill, unless decode has done that.

        `taken`: decode has begun to answer.
        """
        self.keeps = False
        forwarder, reserved = self.route.way.hand_off, self.route.prefill
        if forwarder is None or reserved is None:
            return
        engine = reserved.instance
        if isinstance(error, EngineRefused) and error.at == engine.id:
            return
        leg = forwarder.release(self.call, engine, self._asked if taken else None)
        if leg is not None:
            until = self.record.clock() + forwarder.kv.lease_seconds
            self._execution.releases.send(leg, self.call, until)

    async def _hand_off(
        self,
        forwarder: HandOff,
        prefill: Reserved,
        reply: Json | None = None,
        deliver: Deliver | None = None,
        turn: ChatTurn | None = None,
    ) -> None:
        """`reply`: prefill's, where it has been asked; its token goes out by `deliver`'s answer."""
        call, execution, staged = self.call, self._execution, self.answering is None
        ids = ""
        if call.prompt_tokens >= LONG_TOKENS and may_have_ids(call):
            ids = self.route.way.ids_field
        engine, lives, way = prefill.instance, execution.lives, self.route.way
        if reply is None:
            if way.joins and self.answering is not None:
                await execution.joins.joined(forwarder, engine, self.answering.instance, call)
            self.keeps = way.releases
            to_prefill = forwarder.prefill(call, engine)
            if ids:
                to_prefill = msgspec.structs.replace(to_prefill, body=asking(to_prefill.body))
            back = execution.read_back
            if back is not None and forwarder.reads_back:
                turn = back.turn(call, self.record.key)
                if turn is not None:
                    to_prefill = await back.asked(turn, call, to_prefill, engine)
            reply = await self._ask_prefill(to_prefill, prefill)
            if turn is not None:
                turn.prefilled(engine.id, reply)
            if ids and execution.told_ids is not None:
                execution.told_ids(call, reply)
            if engine.id not in lives.met:
                lives.answered(engine.id, forwarder, reply)
            if execution.early_first_token and self._goes_early(forwarder, to_prefill):
                ahead, said = Ahead(FirstTokenStream(call, {})), reply
                await ahead.run(
                    at_once(reply),
                    self.deliver,
                    self.record,
                    lambda relay: self._hand_off(forwarder, prefill, said, relay, turn),
                )
                return
        while True:
            decode = self.answering
            if decode is None:
                decode = execution.router.decode_for(self.route, call, self.state)
                self.answering = decode
                if way.joins:
                    await execution.joins.joined(forwarder, engine, decode.instance, call)
            try:
                leg = forwarder.decode(call, engine, decode.instance, reply)
                if ids:
                    body = handed_on(leg.body, ids, reply)
                    leg = msgspec.structs.replace(leg, body=body)
                if turn is not None:
                    leg = msgspec.structs.replace(leg, hears=turn.hears)
            except GatewayError as error:
                # It was prefill's answer that was of no use.
                error.at = error.at or engine.id
                raise
            if execution.accused:
                execution.accused.pop(engine.id, None)
            if self.keeps:
                self._asked = leg
            try:
                await self._answer(leg, DECODE, decode, loads=True, deliver=deliver)
                if turn is not None and execution.read_back is not None:
                    execution.read_back.keep(turn, leg.to.id)
                return
            except EngineRefused as error:
                if not staged:
                    raise
                # Nothing was sent, so the KV is still there for another decode engine.
                self.state = noted(self.state, error)
                self.answering = None
                decode.withdraw()
                if self.kv is not None:
                    self.kv.decode_refused()

    def _goes_early(self, forwarder: HandOff | Rendezvous, to_prefill: Leg) -> bool:
        call = self.call
        return (
            self._early
            and (call.path, call.model) not in self._execution.differing
            and not why_not_early(call, forwarder, to_prefill)
        )

    async def _rendezvous(self, forwarder: Rendezvous, prefill: Reserved, decode: Reserved) -> None:
        call = self.call
        to_prefill, to_decode = forwarder.legs(call, prefill.instance, decode.instance)
        if forwarder.callback is None and (to_prefill.awaits or to_decode.awaits):
            # Sent unheard, decode reads KV that is not there yet, and answers wrong.
            raise TypeError(f"{forwarder.name} has legs that wait for a word, and no callback")

        async def answer(prefilling: asyncio.Task[Json]) -> None:
            merge = forwarder.merge(call, to_prefill, to_decode)

            def decoded(deliver: Deliver, merging: Merging | None = None) -> Awaitable[None]:
                return self._answer(
                    to_decode,
                    DECODE,
                    decode,
                    begun=lambda _: decode.has_loaded(self._since_prefill()),
                    deliver=unless_failed(prefilling, deliver),
                    merging=merging,
                )

            early = self._execution.early_first_token
            if early and self._goes_early(forwarder, to_prefill):
                ahead = Ahead(merge or FirstTokenStream(call, {}))
                await ahead.run(prefilling, self.deliver, self.record, decoded)
                return
            await decoded(self.deliver, None if merge is None else Merging(merge, prefilling))

        # Decode's answer needs no more of prefill than decode has had.
        await beside(lambda: self._watch_prefill(to_prefill, prefill), answer)

    async def _delegate(self, forwarder: Delegation, prefill: Reserved, decode: Reserved) -> None:
        def begun(seconds: float) -> StreamWatch | None:
            # Prefill's part of that time cannot be separated from decode's.
            prefill.read(seconds)
            return decode.has_loaded(0.0)

        leg = forwarder.leg(self.call, prefill.instance, decode.instance)
        whole = comes_whole(self.call)
        if whole:
            self._execution.unseen.expect(prefill.reading_seconds, prefill.presume_end)
        await self._answer(leg, DECODE, decode, begun=begun)
        if whole:
            prefill.was_read()

    async def _watch_prefill(self, leg: Leg, reserved: Reserved) -> Json:
        """Prefill's reply. Its failure ends decode's leg, unless decode answers already."""
        try:
            reply = await self._ask_prefill(leg, reserved)
            if self._execution.accused:
                self._execution.accused.pop(leg.to.id, None)
            return reply
        except GatewayError:
            if not self.record.is_answering:
                raise
            return {}
        finally:
            reserved.end()

    async def _ask_prefill(self, leg: Leg, prefill: Reserved) -> Json:
        """Prefill's answer, when it is whole; with the token ids of the prompt, if it was asked for them and its engine names them."""
        record, call, execution = self.record, self.call, self._execution
        # As a method it would be looked up anew with each call.
        clock = record.clock
        noted = record.leg(PREFILL, leg.to)
        try:
            if record.trace is not None:
                leg = _traced(leg, record.trace, noted)
            reply = await execution.upstream.ask(leg, call)
            noted.usage = reply.get("usage")
            # Looked at here: no function of Python for an answer that is as it should be.
            choices = bytes(reply.get("choices", b""))
            text = choices.decode("latin-1")  # two looks take less in a text than in bytes
            gave_up = '"error"' in text or '"abort"' in text
            if (gave_up and openai.aborted(choices)) or (
                call.api is not None and named_events.reply_gave_up(reply)
            ):
                raise EngineGaveUp("the prefill engine gave the call up", at=leg.to.id)
            now = self._read_at = clock()
            kv, kept = self.kv, self._kept
            if kept is not None:
                if kv is None:
                    kv = self.kv = KvLease(kept, self.prefill, execution.ledger)
                kv.prefilled(now)
        except BaseException as error:
            self._failed(noted, error)
            raise
        # `LegRecord.end`, of one that ended well.
        noted.ended, noted.outcome = now, "ok"
        prefill.worked()
        prefill.read(now - noted.started)
        self.reading = None
        return reply

    async def _answer(
        self,
        leg: Leg,
        role: Role,
        by: Reserved,
        loads: bool = False,
        begun: Begun | None = None,
        deliver: Deliver | None = None,
        merging: Merging | None = None,
    ) -> None:
        """Sends the leg whose answer is the client's, and relays it to its end.

        `loads`: prefill has answered, so that decode has only to take the KV over.
        `begun`: where another reservation than `by` learns how long that took.
        """
        record, call, kv, execution = self.record, self.call, self.kv, self._execution
        clock, streams = record.clock, call.streams
        if call.api is not None:
            leg = named(leg, call)
        within = None
        if kv is None and self._kept is not None:
            kv = self.kv = KvLease(self._kept, self.prefill, execution.ledger)
        if kv is not None:
            now = clock()
            kv.ask_decode(leg.to.id, now)
            if loads and streams:
                within = kv.seconds_to_begin(now, streams=True)
        noted = record.leg(role, leg.to)
        try:
            if record.trace is not None:
                leg = _traced(leg, record.trace, noted)
            try:
                opening = execution.upstream.open(
                    leg, call, loads=loads, within=within, behind=self.prefill
                )
                async with opening as opened:  # its end does not wait
                    answer = opened if merging is None else merging.of(opened)
                    if streams or call.api is not None:
                        # Most streams begin well with what is here; of others it takes a closer look.
                        usual = streams and call.api is None
                        if not usual or not openai.begins_well(await answer.ready()):
                            record.usage_said = await good_start(answer, leg, call)
                    else:
                        record.usage_said = good_whole(await answer.ready(WHOLE_BYTES), leg, call)
                    first_byte = noted.first_byte = clock()
                    if kv is not None:
                        kv.decode_began(first_byte, streams=streams)
                    split = record.handed_over = record.path == DISAGGREGATED
                    if split:
                        by.handed_over()
                    # Any other answer begins when it is whole, which says nothing of the prompt.
                    if streams:
                        if begun is not None:
                            watch = begun(first_byte - noted.started)
                        elif loads:
                            watch = by.has_loaded(first_byte - self._read_at)
                        else:
                            watch = by.has_read(first_byte - noted.started)
                        if watch is not None:
                            answer = WatchedBody(answer, watch, clock)
                    await (deliver or self.deliver)(answer, record)
            except EngineTooSlow as error:
                waited = clock() - noted.started
                if within is None or noted.first_byte is not None or waited < within:
                    raise
                raise KvExpired(
                    "the decode engine did not begin while the prefill engine kept the KV",
                    at=leg.to.id,
                ) from error
        except BaseException as error:
            self._failed(noted, error)
            raise
        noted.ended, noted.outcome = clock(), "ok"
        accused = execution.accused
        if accused and (split or not accused.get(leg.to.id)):
            accused.pop(leg.to.id, None)
        by.worked()
        by.end()
        self.answering = None

    def _since_prefill(self) -> float:
        """Seconds since prefill has answered; 0 while it computes."""
        return self.record.clock() - self._read_at if self._read_at else 0.0

    def _failed(self, leg: LegRecord, error: BaseException) -> None:
        leg.end(error)
        if isinstance(error, GatewayError):
            self._execution.failed(leg.instance, error)


def _traced(leg: Leg, trace: Trace, noted: LegRecord) -> Leg:
    return msgspec.structs.replace(leg, headers={**leg.headers, **trace.headers(noted)})
