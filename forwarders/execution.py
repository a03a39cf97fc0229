"""Sends the legs of any forwarder and delivers the answer.

One attempt is a plan (engines reserved), its legs, and the answer's first byte. Until
that byte is committed a failure leads to another attempt, with a fresh id and without
the engines that failed. Reservations, connections and the sibling leg live in blocks,
so they end with the attempt, and with the client, in whatever way it leaves.

A failed prefill must end decode's leg: Mooncake's decode, for one, would wait minutes.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property

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
from pdgate.forwarders.merged import Merging
from pdgate.forwarders.record import DISAGGREGATED, LOCAL, PLAIN, Record
from pdgate.forwarders.tried import Tried
from pdgate.protocols import openai, request_id
from pdgate.protocols.call import CHAT, Call, Json
from pdgate.protocols.errors import EngineFailed, EngineRefused, GatewayError, NoInstance
from pdgate.protocols.instance import Instance, Role

SHARE_OF_LEASE = 0.8
"""Of the time that prefill keeps blocks; nobody is sent to fetch them later."""

HELD_BYTES = 128 << 10
"""Of an answer that is not a stream, or of its first event, before it is relayed as it comes."""

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
                await self._answer(leg, Role.PLAIN, record, deliver)
            return
        with self._reserve(Role.PREFILL, call, tried) as prefill:
            way = self._way_of(prefill.instance)
            _note_path(record, DISAGGREGATED, prefill.instance, way.mode)
            record.why_local = self._why_local(way.forwarder, call, prefill.instance)
            if way.mode is Mode.STAGED and not record.why_local:
                await self._staged(way.forwarder, call, record, deliver, tried, prefill)
                return
            with self._reserve(Role.DECODE, call, tried, prefill.instance) as decode:
                if record.why_local:
                    prefill.end()
                    _note_path(record, LOCAL, decode.instance, way.mode)
                    leg = way.forwarder.local(call, decode.instance)
                    await self._answer(leg, Role.DECODE, record, deliver)
                else:
                    await way.cross(self, way.forwarder, call, record, deliver, prefill, decode)

    def _why_local(self, forwarder: Forwarder, call: Call, prefill: Instance) -> str:
        """The reason for a decode engine to do it all; empty to split the call."""
        why = forwarder.why_local(call)
        if why is None and forwarder.decode_can_prefill:
            why = self._engines.why_local(call, prefill)
        return why or ""

    async def _hand_off(
        self,
        forwarder: HandOff,
        call: Call,
        record: Record,
        deliver: Deliver,
        prefill: Reserved,
        decode: Reserved,
    ) -> None:
        reply = await self._ask_prefill(forwarder.prefill(call, prefill.instance), record)
        prefill.end()
        leg = _decode_leg(forwarder, call, prefill.instance, decode.instance, reply)
        await self._answer(leg, Role.DECODE, record, deliver)

    async def _delegate(
        self,
        forwarder: Delegation,
        call: Call,
        record: Record,
        deliver: Deliver,
        prefill: Reserved,
        decode: Reserved,
    ) -> None:
        leg = forwarder.leg(call, prefill.instance, decode.instance)
        await self._answer(leg, Role.DECODE, record, deliver)

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
        reply = await self._ask_prefill(forwarder.prefill(call, prefill.instance), record)
        prefill.end()
        answered = record.clock()
        while True:
            with self._reserve(Role.DECODE, call, tried, prefill.instance) as decode:
                leg = _decode_leg(forwarder, call, prefill.instance, decode.instance, reply)
                try:
                    await self._answer(leg, Role.DECODE, record, deliver)
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
        with _ungrouped():
            async with asyncio.TaskGroup() as together:
                prefilling = together.create_task(self._watch_prefill(to_prefill, record, prefill))
                merge = forwarder.merge(call, to_prefill, to_decode)
                merging = None if merge is None else Merging(merge, prefilling)
                await self._answer(to_decode, Role.DECODE, record, deliver, merging)
                # Decode has all it needed; what prefill still says is of no use.
                prefilling.cancel()

    async def _watch_prefill(self, leg: Leg, record: Record, reserved: Reserved) -> Json:
        """Prefill's reply. Its failure ends decode's leg, unless decode answers already."""
        try:
            return await self._ask_prefill(leg, record)
        except GatewayError:
            if record.committed is None:
                raise
            return {}
        finally:
            reserved.end()

    async def _ask_prefill(self, leg: Leg, record: Record) -> Json:
        with record.leg(Role.PREFILL, leg.to, self._engines.report):
            reply = await self._upstream.ask(leg, record.call)
            if openai.gave_up(reply):
                raise EngineFailed("the prefill engine gave the call up", at=leg.to.id)
        return reply

    async def _answer(
        self,
        leg: Leg,
        role: Role,
        record: Record,
        deliver: Deliver,
        merging: Merging | None = None,
    ) -> None:
        with record.leg(role, leg.to, self._engines.report) as noted:
            async with self._upstream.open(leg, record.call) as opened:
                answer = opened if merging is None else merging.of(opened)
                await _good_start(answer, leg, record.call)
                noted.first_byte = record.clock()
                record.handed_over = record.path == DISAGGREGATED
                await deliver(answer, record)

    def _reserve(
        self, role: Role, call: Call, tried: Tried, peer: Instance | None = None
    ) -> Reserved:
        """One that has not failed this call yet; else one that may be tried again."""
        if not tried:
            return self._engines.reserve(role, call, peer=peer)
        try:
            return self._engines.reserve(role, call, avoid=tried.failed, peer=peer)
        except NoInstance:
            return self._engines.reserve(role, call, avoid=tried.given_up, peer=peer)


def _decode_leg(
    forwarder: HandOff, call: Call, prefill: Instance, decode: Instance, reply: Json
) -> Leg:
    try:
        return forwarder.decode(call, prefill, decode, reply)
    except GatewayError as error:
        # It was prefill's answer that was of no use.
        error.at = error.at or prefill.id
        raise


def _note_path(record: Record, path: str, at: Instance, mode: str) -> None:
    record.path, record.protocol, record.mode = path, at.protocol, mode


async def _good_start(answer: Answer, leg: Leg, call: Call) -> None:
    """Waits for the first bytes that say something. Raises EngineFailed if they are bad.

    Half a JSON answer is of no use to a client, so one that is not a stream is held until
    it is whole (or long), and can be had from another engine until then.
    """
    first = await answer.ready(0 if call.streams else HELD_BYTES)
    if not first:
        raise EngineFailed("the engine's answer was empty", at=leg.to.id)
    while call.streams and openai.says_nothing_yet(first, chat=call.path == CHAT):
        more = await answer.ready(beyond=len(first))
        if len(more) == len(first) or len(more) > HELD_BYTES:
            break
        first = more
    if openai.aborted(first):
        raise EngineFailed("the engine gave the call up", at=leg.to.id)
    if call.streams:
        openai.raise_stream_error(first, at=leg.to.id)


@contextmanager
def _ungrouped() -> Iterator[None]:
    """A task group wraps what went wrong; callers want the error itself."""
    try:
        yield
    except BaseExceptionGroup as group:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            # The client left in the moment of the failure, and before Python 3.13 the
            # group forgets that.
            raise asyncio.CancelledError from None
        raise group.exceptions[0] from None
