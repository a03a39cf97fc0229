"""Sends the legs of any forwarder and delivers the answer.

One attempt is a plan (engines reserved), its legs, and the answer's first byte. Until
that byte is committed a failure leads to another attempt, with a fresh id and without
the engines that failed. Reservations, connections and the sibling leg live in blocks,
so they end with the attempt, and with the client, in whatever way it leaves.

A failed prefill must end decode's leg: Mooncake's decode, for one, would wait minutes.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from pdgate.forwarders.base import (
    Answer,
    Delegation,
    Engines,
    Forwarder,
    HandOff,
    Leg,
    Mode,
    Rendezvous,
    Reserved,
    Upstream,
)
from pdgate.forwarders.good_start import good_start
from pdgate.forwarders.merged import Merging
from pdgate.forwarders.record import DISAGGREGATED, LOCAL, PLAIN, PREFILL_ONLY, Record
from pdgate.forwarders.splitting import decide
from pdgate.forwarders.tried import Tried
from pdgate.forwarders.ungrouped import ungrouped
from pdgate.protocols import openai, request_id
from pdgate.protocols.call import Call, Json
from pdgate.protocols.errors import EngineFailed, EngineRefused, GatewayError, NoInstance
from pdgate.protocols.instance import Instance, Role
from pdgate.scheduling.disaggregation import Taken

SHARE_OF_LEASE = 0.8
"""Of the time that prefill keeps blocks; nobody is sent to fetch them later."""

_PATHS: Final = {
    Taken.SPLIT: DISAGGREGATED,
    Taken.LOCAL: LOCAL,
    Taken.PREFILL_ONLY: PREFILL_ONLY,
}

Begun = Callable[[float], None]
"""Told when a stream begins, and how many seconds after its leg."""

Deliver = Callable[[Answer, Record], Awaitable[None]]
"""Relays the answer to the client; notes in the record when the first byte is committed."""


@dataclass(frozen=True)
class Way:
    """How calls cross from (and to) an instance: its protocol's forwarder, and the mode."""

    forwarder: Forwarder
    mode: Mode

    @cached_property
    def cross(self) -> Callable[..., Awaitable[None]]:
        """How to cross both engines at once; found once, as isinstance of an ABC is slow."""
        match self.forwarder:
            case HandOff():
                return Execution._hand_off
            case Rendezvous():
                return Execution._rendezvous
            case Delegation():
                return Execution._delegate
        raise TypeError(f"{self.forwarder.name} has no way to cross two engines")


class Execution:
    def __init__(
        self,
        engines: Engines,
        way_of: Callable[[Instance], Way],
        upstream: Upstream,
        *,
        max_attempts: int = 3,
    ) -> None:
        self._engines = engines
        self._way_of = way_of
        self._upstream = upstream
        self._max_attempts = max_attempts

    async def serve(self, call: Call, record: Record, deliver: Deliver) -> None:
        """Raises the GatewayError that the client is to see."""
        tried = Tried()
        while True:
            record.attempts += 1
            try:
                await self._attempt(call, record, deliver, tried)
                return
            except NoInstance as error:
                raise tried.first_cause or error from None
            except GatewayError as error:
                final = record.committed is not None or record.attempts >= self._max_attempts
                if final or not error.worth_retrying or not error.at:
                    raise
                tried.note(error)
            call = record.call = call.retried(request_id.attempt(call.id))

    async def _attempt(self, call: Call, record: Record, deliver: Deliver, tried: Tried) -> None:
        if not self._engines.disaggregates(call):
            with self._reserve(Role.PLAIN, call, tried) as plain:
                _note_path(record, PLAIN, plain.instance, "")
                leg = self._way_of(plain.instance).forwarder.local(call, plain.instance)
                await self._answer(leg, Role.PLAIN, record, deliver, plain.has_read)
            return
        with self._reserve(Role.PREFILL, call, tried) as prefill:
            way = self._way_of(prefill.instance)
            decision = decide(self._engines, way.forwarder, call, prefill.instance)
            record.decisions[record.attempts] = decision
            _note_path(record, _PATHS[decision.taken], prefill.instance, way.mode)
            if decision.taken is Taken.PREFILL_ONLY:
                leg = Leg(prefill.instance, call.path, call.body)
                await self._answer(leg, Role.PREFILL, record, deliver, prefill.has_read)
            elif decision.taken is Taken.LOCAL:
                prefill.end()
                await self._local(way.forwarder, call, record, deliver, tried, prefill.instance)
            elif way.mode is Mode.STAGED:
                await self._staged(way.forwarder, call, record, deliver, tried, prefill)
            else:
                with self._reserve(Role.DECODE, call, tried, prefill.instance) as decode:
                    try:
                        await way.cross(self, way.forwarder, call, record, deliver, prefill, decode)
                    except EngineFailed:
                        if isinstance(way.forwarder, Delegation):
                            # Decode asked prefill, so it may only tell of prefill's failure.
                            tried.suspect(prefill.instance.id)
                        raise

    async def _local(
        self,
        forwarder: Forwarder,
        call: Call,
        record: Record,
        deliver: Deliver,
        tried: Tried,
        peer: Instance,
    ) -> None:
        with self._reserve(Role.DECODE, call, tried, peer, reads=True) as decode:
            leg = forwarder.local(call, decode.instance)
            await self._answer(leg, Role.DECODE, record, deliver, decode.has_read)

    async def _hand_off(
        self,
        forwarder: HandOff,
        call: Call,
        record: Record,
        deliver: Deliver,
        prefill: Reserved,
        decode: Reserved,
    ) -> None:
        reply = await self._ask_prefill(forwarder.prefill(call, prefill.instance), record, prefill)
        leg = _decode_leg(forwarder, call, prefill.instance, decode.instance, reply)
        await self._answer(leg, Role.DECODE, record, deliver, _loaded(record, decode))

    async def _delegate(
        self,
        forwarder: Delegation,
        call: Call,
        record: Record,
        deliver: Deliver,
        prefill: Reserved,
        decode: Reserved,
    ) -> None:
        def begun(seconds: float) -> None:
            # Nobody here can tell prefill's part of that time from decode's.
            prefill.has_read(seconds)
            decode.has_loaded(0.0)
            prefill.end()

        leg = forwarder.leg(call, prefill.instance, decode.instance)
        await self._answer(leg, Role.DECODE, record, deliver, begun)

    async def _staged(
        self,
        forwarder: Forwarder,
        call: Call,
        record: Record,
        deliver: Deliver,
        tried: Tried,
        prefill: Reserved,
    ) -> None:
        if not isinstance(forwarder, HandOff):
            raise TypeError(f"{forwarder.name} cannot choose decode after prefill")
        reply = await self._ask_prefill(forwarder.prefill(call, prefill.instance), record, prefill)
        answered = record.clock()
        while True:
            with self._reserve(Role.DECODE, call, tried, prefill.instance) as decode:
                leg = _decode_leg(forwarder, call, prefill.instance, decode.instance, reply)
                try:
                    await self._answer(leg, Role.DECODE, record, deliver, _loaded(record, decode))
                    return
                except EngineRefused as error:
                    # Nothing was sent, so the KV is still there for another decode engine.
                    tried.note(error)
            lease = forwarder.lease_seconds
            if lease is not None and record.clock() - answered > lease * SHARE_OF_LEASE:
                raise EngineFailed("no decode engine took the call in time", at=prefill.instance.id)

    async def _rendezvous(
        self,
        forwarder: Rendezvous,
        call: Call,
        record: Record,
        deliver: Deliver,
        prefill: Reserved,
        decode: Reserved,
    ) -> None:
        to_prefill, to_decode = forwarder.legs(call, prefill.instance, decode.instance)
        with ungrouped():
            async with asyncio.TaskGroup() as together:
                prefilling = together.create_task(self._watch_prefill(to_prefill, record, prefill))
                merge = forwarder.merge(call, to_prefill, to_decode)
                merging = None if merge is None else Merging(merge, prefilling)
                begun = _loaded(record, decode)
                unless = _unless_failed(prefilling, deliver)
                await self._answer(to_decode, Role.DECODE, record, unless, begun, merging)
                # Decode has all it needed; what prefill still says is of no use.
                prefilling.cancel()

    async def _watch_prefill(self, leg: Leg, record: Record, reserved: Reserved) -> Json:
        """Prefill's reply. Its failure ends decode's leg, unless decode answers already."""
        try:
            return await self._ask_prefill(leg, record, reserved)
        except GatewayError:
            if record.committed is None:
                raise
            return {}
        finally:
            reserved.end()

    async def _ask_prefill(self, leg: Leg, record: Record, prefill: Reserved) -> Json:
        with record.leg(Role.PREFILL, leg.to, self._engines.report) as noted:
            reply = await self._upstream.ask(leg, record.call)
            if openai.gave_up(reply):
                raise EngineFailed("the prefill engine gave the call up", at=leg.to.id)
            prefill.has_read(record.clock() - noted.started)
        prefill.end()
        return reply

    async def _answer(
        self,
        leg: Leg,
        role: Role,
        record: Record,
        deliver: Deliver,
        begun: Begun,
        merging: Merging | None = None,
    ) -> None:
        with record.leg(role, leg.to, self._engines.report) as noted:
            async with self._upstream.open(leg, record.call) as opened:
                answer = opened if merging is None else merging.of(opened)
                await good_start(answer, leg, record.call)
                noted.first_byte = record.clock()
                record.handed_over = record.path == DISAGGREGATED
                # Any other answer begins when it is whole, which says nothing of the prompt.
                if record.call.streams:
                    begun(noted.first_byte - noted.started)
                await deliver(answer, record)

    def _reserve(
        self,
        role: Role,
        call: Call,
        tried: Tried,
        peer: Instance | None = None,
        reads: bool | None = None,
    ) -> Reserved:
        """One that has not failed this call yet; else one that may be tried again."""
        reserve = self._engines.reserve
        if not tried:
            return reserve(role, call, peer=peer, reads=reads)
        try:
            return reserve(role, call, avoid=tried.failed, peer=peer, reads=reads)
        except NoInstance:
            return reserve(role, call, avoid=tried.given_up, peer=peer, reads=reads)


def _decode_leg(
    forwarder: HandOff, call: Call, prefill: Instance, decode: Instance, reply: Json
) -> Leg:
    try:
        return forwarder.decode(call, prefill, decode, reply)
    except GatewayError as error:
        # It was prefill's answer that was of no use.
        error.at = error.at or prefill.id
        raise


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


def _loaded(record: Record, decode: Reserved) -> Begun:
    return lambda _: decode.has_loaded(record.since_prefill())


def _note_path(record: Record, path: str, at: Instance, mode: str) -> None:
    record.path, record.protocol, record.mode = path, at.protocol, mode
