"""One attempt at a call: what its legs share, and how a leg is sent.

execution.py makes one for each attempt, crossing.py orders its legs.
"""

from collections.abc import Awaitable, Callable, Collection

import msgspec

from pdgate.forwarders.base import Answer, Engines, Leg, Reserved, Upstream
from pdgate.forwarders.good_start import HELD_BYTES, good_start, good_whole
from pdgate.forwarders.lives import Lives
from pdgate.forwarders.merged import Merging
from pdgate.forwarders.other_apis import named
from pdgate.forwarders.ownership import RELEASED, Ownership
from pdgate.forwarders.record import DISAGGREGATED, LegRecord, Record, Report, Trace
from pdgate.forwarders.tried import Tried
from pdgate.forwarders.watched import Watched
from pdgate.protocols import named_events, openai
from pdgate.protocols.call import Call, Json
from pdgate.protocols.errors import EngineGaveUp, EngineTooSlow, KvExpired, NoInstance
from pdgate.protocols.instance import DECODE, PREFILL, Instance, Role
from pdgate.scheduling.watch import Watch

Begun = Callable[[float], Watch | None]
"""Told when a stream begins, and how many seconds after its leg; returns who watches it."""

Deliver = Callable[[Answer, Record], Awaitable[None]]
"""Relays the answer to the client; notes in the record when the first byte is committed."""


class Attempt:
    """It ends, once, with what its legs end with: then its engines are free, and the KV is let go of.

    Attributes:
        call: As it is sent this time, under an id of its own.
        tried: Who has failed the call so far, in earlier attempts and in this one.
        reading: Of the prefill engine, until the attempt ends; None where none was chosen.
        answering: The same of the engine whose answer is the client's, where it was chosen before.
        prefill: The id of the engine chosen to read the prompt for decode; empty for none.
        kv: Who holds what it computed; None where nothing is kept for anybody.
        lives: Told of what prefill engines answer.
    """

    __slots__ = (
        "_engines",
        "_report",
        "_upstream",
        "answering",
        "call",
        "deliver",
        "kv",
        "lives",
        "prefill",
        "reading",
        "record",
        "tried",
    )

    def __init__(
        self,
        engines: Engines,
        upstream: Upstream,
        call: Call,
        record: Record,
        deliver: Deliver,
        tried: Tried,
        lives: Lives,
        report: Report,
    ) -> None:
        self._engines = engines
        self._upstream = upstream
        self.call = call
        self.record = record
        self.deliver = deliver
        self.tried = tried
        self.lives = lives
        self._report = report
        self.prefill = ""
        self.reading: Reserved | None = None
        self.answering: Reserved | None = None
        self.kv: Ownership | None = None

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

    def reserve(
        self, role: Role, peer: Instance | None = None, reads: bool | None = None
    ) -> Reserved:
        """One that has not failed this call yet; else one that may be tried again."""
        if not self.tried.failures:
            return self._engines.reserve(role, self.call, peer=peer, reads=reads)
        reserve = self._engines.reserve
        try:
            return reserve(role, self.call, avoid=self.tried.failed, peer=peer, reads=reads)
        except NoInstance:
            return reserve(role, self.call, avoid=self.tried.given_up, peer=peer, reads=reads)

    def reserve_alone(self, avoid: Collection[str]) -> Reserved:
        """A decode engine that reads the prompt itself, whether or not there is a prefill engine.

        One that has not failed this call yet; else one that may have failed over the KV.
        """
        reserve, tried = self._engines.reserve, self.tried
        try:
            failed = {*avoid, *tried.failed}
            return reserve(DECODE, self.call, avoid=failed, reads=True, alone=True)
        except NoInstance:
            unfit = {*avoid, *tried.unfit}
            return reserve(DECODE, self.call, avoid=unfit, reads=True, alone=True)

    def reserve_any(self, role: Role, *, reads: bool) -> Reserved:
        """One of the role for a whole call, paired or not, as `reserve` chooses it."""
        reserve, tried = self._engines.reserve, self.tried
        try:
            return reserve(role, self.call, avoid=tried.failed, reads=reads, alone=True)
        except NoInstance:
            return reserve(role, self.call, avoid=tried.given_up, reads=reads, alone=True)

    async def ask_prefill(self, leg: Leg, prefill: Reserved) -> Json:
        """Prefill's answer, when it is whole."""
        record, call = self.record, self.call
        # As a method it would be looked up anew with each call.
        clock = record.clock
        noted = record.leg(PREFILL, leg.to, self._report)
        try:
            if record.trace is not None:
                leg = _traced(leg, record.trace, noted)
            reply = await self._upstream.ask(leg, call)
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
        `begun`: where another one than `by` is to be told of how long that took.
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
        noted = record.leg(role, leg.to, self._report)
        try:
            if record.trace is not None:
                leg = _traced(leg, record.trace, noted)
            try:
                async with self._upstream.open(leg, call, loads=loads, within=within) as opened:
                    answer = opened if merging is None else merging.of(opened)
                    if streams or call.api is not None:
                        await good_start(answer, leg, call)
                    else:
                        good_whole(await answer.ready(HELD_BYTES), leg)
                    first_byte = noted.first_byte = clock()
                    if kv is not None:
                        kv.decode_began(first_byte, streams=streams)
                    split = record.handed_over = record.path == DISAGGREGATED
                    if split:
                        self._engines.handed_over(leg.to)
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
        """A stream has begun, so long after its leg was sent; returns who watches it."""
        if begun is not None:
            return begun(seconds)
        return by.has_loaded(self.record.since_prefill()) if loads else by.has_read(seconds)


def _traced(leg: Leg, trace: Trace, noted: LegRecord) -> Leg:
    return msgspec.structs.replace(leg, headers={**leg.headers, **trace.headers(noted)})
