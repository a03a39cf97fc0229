"""Attempts at a call, until one of them is its answer.

One attempt is a plan (engines reserved), its legs, and the answer's first byte. Until
that byte is committed a failure leads to another attempt, with a fresh id and without
the engines that failed. Reservations, connections and the sibling leg live in blocks,
so they end with the attempt, and with the client, in whatever way it leaves.

    execution   attempts           attempt   one attempt's legs, sent
    tried       who failed         crossing  their order
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from pdgate.forwarders.attempt import Attempt, Deliver
from pdgate.forwarders.base import Engines, Forwarder, Leg, Mode, Upstream
from pdgate.forwarders.crossing import Cross, staged, way_across
from pdgate.forwarders.record import DISAGGREGATED, LOCAL, PLAIN, PREFILL_ONLY, Record
from pdgate.forwarders.splitting import decide
from pdgate.forwarders.tried import Tried
from pdgate.protocols import request_id
from pdgate.protocols.call import Call
from pdgate.protocols.errors import GatewayError, NoInstance
from pdgate.protocols.instance import Instance, Role
from pdgate.scheduling.disaggregation import Taken

_PATHS: Final = {
    Taken.SPLIT: DISAGGREGATED,
    Taken.LOCAL: LOCAL,
    Taken.PREFILL_ONLY: PREFILL_ONLY,
}


@dataclass(frozen=True)
class Way:
    """How calls cross from (and to) an instance: its protocol's forwarder, and the mode."""

    forwarder: Forwarder
    mode: Mode

    @cached_property
    def cross(self) -> Cross:
        """How to cross both engines at once; found once, as isinstance of an ABC is slow."""
        return way_across(self.forwarder)


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
            attempt = Attempt(self._engines, self._upstream, call, record, deliver, tried)
            try:
                await self._make(attempt)
                return
            except NoInstance as error:
                raise tried.first_cause or error from None
            except GatewayError as error:
                final = record.committed is not None or record.attempts >= self._max_attempts
                if final or not error.worth_retrying or not error.at:
                    raise
                tried.note(error)
            call = record.call = call.retried(request_id.attempt(call.id))

    async def _make(self, attempt: Attempt) -> None:
        call, record = attempt.call, attempt.record
        if not self._engines.disaggregates(call):
            with attempt.reserve(Role.PLAIN) as plain:
                _note_path(record, PLAIN, plain.instance, "")
                leg = self._way_of(plain.instance).forwarder.local(call, plain.instance)
                await attempt.answer(leg, Role.PLAIN, plain.has_read)
            return
        with attempt.reserve(Role.PREFILL) as prefill:
            way = self._way_of(prefill.instance)
            decision = decide(self._engines, way.forwarder, call, prefill.instance)
            record.decisions[record.attempts] = decision
            _note_path(record, _PATHS[decision.taken], prefill.instance, way.mode)
            if decision.taken is Taken.PREFILL_ONLY:
                leg = Leg(prefill.instance, call.path, call.body)
                await attempt.answer(leg, Role.PREFILL, prefill.has_read)
            elif decision.taken is Taken.LOCAL:
                prefill.end()
                with attempt.reserve(Role.DECODE, prefill.instance, reads=True) as decode:
                    leg = way.forwarder.local(call, decode.instance)
                    await attempt.answer(leg, Role.DECODE, decode.has_read)
            elif way.mode is Mode.STAGED:
                await staged(way.forwarder, attempt, prefill)
            else:
                with attempt.reserve(Role.DECODE, prefill.instance) as decode:
                    await way.cross(way.forwarder, attempt, prefill, decode)


def _note_path(record: Record, path: str, at: Instance, mode: str) -> None:
    record.path, record.protocol, record.mode = path, at.protocol, mode
