"""Attempt at a call: its legs, in the order of its protocol, and what they hold until it ends.

    one engine    answer
    hand off      ask prefill, then answer by decode
    staged        the same, and decode is chosen when prefill has answered
    rendezvous    both at once; a failed prefill ends decode's leg, which for Mooncake would wait minutes
    delegate      answer by decode, which asks prefill itself

routing.py chooses the engines, execution.py makes another attempt when one has failed.
"""

import asyncio
from collections.abc import Awaitable, Callable

import msgspec

from pdgate.forwarders.base import (
    Answer,
    Delegation,
    Engines,
    HandOff,
    Leg,
    Rendezvous,
    Reserved,
    Upstream,
)
from pdgate.forwarders.beside import beside
from pdgate.forwarders.body_filter import Watched
from pdgate.forwarders.first_event import WHOLE_BYTES, good_start, good_whole
from pdgate.forwarders.kv_lease import RELEASED, KvLease, KvLedger
from pdgate.forwarders.lives import Lives
from pdgate.forwarders.merged import Merging
from pdgate.forwarders.other_apis import named
from pdgate.forwarders.record import DISAGGREGATED, LegRecord, Record, Report, Trace
from pdgate.forwarders.retry import RetryState, noted
from pdgate.forwarders.route import Route
from pdgate.forwarders.routing import Router
from pdgate.protocols import named_events, openai
from pdgate.protocols.call import Call, Json
from pdgate.protocols.errors import (
    EngineGaveUp,
    EngineRefused,
    EngineTooSlow,
    GatewayError,
    KvExpired,
)
from pdgate.protocols.instance import DECODE, PREFILL, Instance, Role
from pdgate.scheduling.watch import Watch

Begun = Callable[[float], Watch | None]
"""Called when a stream begins, with the seconds since its leg; returns the watch of its pace."""

Deliver = Callable[[Answer, Record], Awaitable[None]]
"""Relays the answer to the client; notes in the record when the first byte is committed."""


class Means:
    """What all attempts of a gateway share."""

    __slots__ = ("engines", "ledger", "lives", "report", "router", "upstream")

    def __init__(
        self,
        engines: Engines,
        router: Router,
        upstream: Upstream,
        ledger: KvLedger,
        lives: Lives,
        report: Report,
    ) -> None:
        self.engines = engines
        self.router = router
        self.upstream = upstream
        self.ledger = ledger
        self.lives = lives
        self.report = report


class Attempt:
    """It ends, once, with what its legs end with: then its engines are free, and the KV is let go of.

    Attributes:
        call: As it is sent this time, under an id of its own.
        state: What failed before it, and while it chose decode.
        reading: Of the prefill engine, until it has read; None where none was chosen.
        answering: The same of the engine whose answer is the client's, where it was chosen before.
        prefill: The id of the engine chosen to read the prompt for decode; empty for none.
        kv: The KV that prefill keeps for decode; None where none is kept.
    """

    __slots__ = (
        "_means", "answering", "call", "deliver", "kv", "prefill", "reading", "record", "route", "state",
    )  # fmt: skip

    def __init__(
        self,
        means: Means,
        route: Route,
        state: RetryState,
        call: Call,
        record: Record,
        deliver: Deliver,
    ) -> None:
        self._means = means
        self.route = route
        self.state = state
        self.call = call
        self.record = record
        self.deliver = deliver
        reading = self.reading = route.prefill
        self.answering = route.answering
        self.prefill = "" if reading is None else reading.instance.id
        self.kv: KvLease | None = None
        kept = route.way.kv
        if kept is not None and route.path == DISAGGREGATED:
            self.kv = KvLease(kept, self.prefill, means.ledger)

    def send(self) -> Awaitable[None]:
        """Sends its legs, and relays the answer to its end. Raises GatewayError.

        A function and not a coroutine, as there is nothing to wait for until the first leg is sent.
        """
        route = self.route
        leg, prefill, answering = route.leg, route.prefill, route.answering
        if leg is not None:
            one = prefill if answering is None else answering
            assert one is not None
            return self.answer(leg, route.role, one)
        way = route.way
        if prefill is not None and way.hand_off is not None:
            if answering is None:
                return self._staged(way.hand_off, prefill)
            return self._hand_off(way.hand_off, prefill, answering)
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
                if kv is not None and kv.state is not RELEASED:
                    clock = self.record.clock
                    kv.end(error, clock())

    async def _hand_off(self, forwarder: HandOff, prefill: Reserved, decode: Reserved) -> None:
        reply = await self.ask_prefill(forwarder.prefill(self.call, prefill.instance), prefill)
        leg = self._decode_leg(forwarder, prefill.instance, decode.instance, reply)
        await self.answer(leg, DECODE, decode, loads=True)

    async def _staged(self, forwarder: HandOff, prefill: Reserved) -> None:
        call, router = self.call, self._means.router
        reply = await self.ask_prefill(forwarder.prefill(call, prefill.instance), prefill)
        while True:
            with router.decode_for(self.route, call, self.state) as decode:
                leg = self._decode_leg(forwarder, prefill.instance, decode.instance, reply)
                try:
                    await self.answer(leg, DECODE, decode, loads=True)
                    return
                except EngineRefused as error:
                    # Nothing was sent, so the KV is still there for another decode engine.
                    self.state = noted(self.state, error)
                    if self.kv is not None:
                        self.kv.decode_refused()

    async def _rendezvous(self, forwarder: Rendezvous, prefill: Reserved, decode: Reserved) -> None:
        call = self.call
        to_prefill, to_decode = forwarder.legs(call, prefill.instance, decode.instance)

        async def answer(prefilling: asyncio.Task[Json]) -> None:
            merge = forwarder.merge(call, to_prefill, to_decode)
            await self.answer(
                to_decode,
                DECODE,
                decode,
                begun=lambda _: decode.has_loaded(self.record.since_prefill()),
                deliver=_unless_failed(prefilling, self.deliver),
                merging=None if merge is None else Merging(merge, prefilling),
            )

        # Decode's answer needs no more of prefill than decode has had.
        await beside(lambda: self._watch_prefill(to_prefill, prefill), answer)

    async def _delegate(self, forwarder: Delegation, prefill: Reserved, decode: Reserved) -> None:
        def begun(seconds: float) -> Watch | None:
            # Prefill's part of that time cannot be separated from decode's.
            prefill.has_read(seconds)
            prefill.end()
            return decode.has_loaded(0.0)

        leg = forwarder.leg(self.call, prefill.instance, decode.instance)
        await self.answer(leg, DECODE, decode, begun=begun)

    async def _watch_prefill(self, leg: Leg, reserved: Reserved) -> Json:
        """Prefill's reply. Its failure ends decode's leg, unless decode answers already."""
        try:
            return await self.ask_prefill(leg, reserved)
        except GatewayError:
            if not self.record.is_answering:
                raise
            return {}
        finally:
            reserved.end()

    def _decode_leg(
        self, forwarder: HandOff, prefill: Instance, decode: Instance, reply: Json
    ) -> Leg:
        lives = self._means.lives
        if prefill.id not in lives.met:
            lives.answered(prefill.id, forwarder, reply)
        try:
            return forwarder.decode(self.call, prefill, decode, reply)
        except GatewayError as error:
            # It was prefill's answer that was of no use.
            error.at = error.at or prefill.id
            raise

    async def ask_prefill(self, leg: Leg, prefill: Reserved) -> Json:
        """Prefill's answer, when it is whole."""
        record, call = self.record, self.call
        # As a method it would be looked up anew with each call.
        clock = record.clock
        noted = record.leg(PREFILL, leg.to, self._means.report)
        try:
            if record.trace is not None:
                leg = _traced(leg, record.trace, noted)
            reply = await self._means.upstream.ask(leg, call)
            noted.usage = reply.get("usage")
            if openai.gave_up(reply) or (
                call.api is not None and named_events.reply_gave_up(reply)
            ):
                raise EngineGaveUp("the prefill engine gave the call up", at=leg.to.id)
            now = clock()
            prefill.has_read(now - noted.started)
            kv = self.kv
            if kv is not None:
                kv.prefilled(now)
        except BaseException as error:
            noted.end(error)
            raise
        noted.end(None)
        prefill.end()
        self.reading = None
        return reply

    async def answer(
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
        record, call, kv = self.record, self.call, self.kv
        clock, streams = record.clock, call.streams
        if call.api is not None:
            leg = named(leg, call)
        within = None
        if kv is not None:
            now = clock()
            kv.ask_decode(leg.to.id, now)
            if loads and streams:
                within = kv.seconds_to_begin(now, streams=True)
        noted = record.leg(role, leg.to, self._means.report)
        try:
            if record.trace is not None:
                leg = _traced(leg, record.trace, noted)
            try:
                opening = self._means.upstream.open(
                    leg, call, loads=loads, within=within, behind=self.prefill
                )
                async with opening as opened:  # its end does not wait
                    answer = opened if merging is None else merging.of(opened)
                    if streams or call.api is not None:
                        await good_start(answer, leg, call)
                    else:
                        record.usage_said = good_whole(await answer.ready(WHOLE_BYTES), leg)
                    first_byte = noted.first_byte = clock()
                    if kv is not None:
                        kv.decode_began(first_byte, streams=streams)
                    split = record.handed_over = record.path == DISAGGREGATED
                    if split:
                        self._means.engines.handed_over(leg.to)
                    # Any other answer begins when it is whole, which says nothing of the prompt.
                    if streams:
                        watch = self._begun(by, first_byte - noted.started, loads, begun)
                        if watch is not None:
                            answer = Watched(answer, watch, clock)
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
            noted.end(error)
            raise
        noted.end(None)

    def _begun(
        self, by: Reserved, seconds: float, loads: bool, begun: Begun | None
    ) -> Watch | None:
        """A stream has begun, so long after its leg was sent; returns its watch."""
        if begun is not None:
            return begun(seconds)
        return by.has_loaded(self.record.since_prefill()) if loads else by.has_read(seconds)


def _unless_failed(prefilling: asyncio.Task[Json], deliver: Deliver) -> Deliver:
    """Delivers unless prefill has failed by now.

    Its group would say so only in the next turn of the event loop, by cancelling us; the
    first byte would be out by then, and no other engine could be asked.
    """

    async def deliver_(answer: Answer, record: Record) -> None:
        if prefilling.done():
            prefilling.result()
        await deliver(answer, record)

    return deliver_


def _traced(leg: Leg, trace: Trace, noted: LegRecord) -> Leg:
    return msgspec.structs.replace(leg, headers={**leg.headers, **trace.headers(noted)})
