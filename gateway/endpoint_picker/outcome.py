"""Picked call: the engines that a call was sent to, reserved until its response is over, and what is learnt from that.

    head(200)                 the prompt has been read, by prefill if there was one
    head(5xx), served=other   the engine failed; Envoy went on to another of the list
    piece, piece, ended()     what it took, as far as the answer says
    left()                    the client has gone, or Envoy ended the exchange

Envoy's own word about an upstream that cannot be reached is a response of 5xx like any other.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

import msgspec

from pdgate.forwarders.base import Engines, Reserved
from pdgate.forwarders.record import DISAGGREGATED, LegRecord, Record
from pdgate.gateway.upstream.failures import failure
from pdgate.protocols.call import Call, Headers
from pdgate.protocols.errors import EngineRefused, EngineRejected, GatewayError
from pdgate.protocols.instance import Instance, Role

TAIL_BYTES: Final = 16 << 10
"""Of an answer's end, where it says what it took."""
CLIENT_GONE: Final = 499


class ServedEndpoint(StrEnum):
    """Which engine of the list a response is from."""

    FIRST = "first"
    FALLBACK = "fallback"
    ANOTHER = "another"
    UNSAID = "unsaid"


@dataclass(frozen=True, slots=True)
class EndpointChoice:
    """Answer to the data plane.

    Attributes:
        destinations: Address -> engine, in the order in which they are to be tried.
        headers: Of the request, one value each.
        removed: Names of headers that no client may say.
        body: In place of the client's; None to leave that.
    """

    destinations: Mapping[str, Instance]
    headers: dict[str, str]
    removed: tuple[str, ...] = ()
    body: bytes | None = None

    @property
    def destination(self) -> str:
        return ",".join(self.destinations)


@dataclass(slots=True)
class Reservations:
    """Reservations of one call.

    Attributes:
        answering: Whose answer is the client's; None once it is over.
        prefill, encoders: Until the answer begins.
    """

    role: Role
    answering: Reserved | None
    prefill: Reserved | None = None
    encoders: Sequence[Reserved] = field(default=())


class PickedCall:
    def __init__(
        self,
        call: Call,
        record: Record,
        choice: EndpointChoice,
        reserved: Reservations,
        engines: Engines,
        failed: Callable[[Instance, GatewayError], None],
        block: ExitStack,
    ) -> None:
        """`failed`: how a leg ended badly. `block`: what ends with the call."""
        self.choice = choice
        self.record = record
        self._call = call
        self._reserved = reserved
        self._engines = engines
        self._failed = failed
        self._block = block
        self._tail = b""
        self._over = False
        self._prefill_leg: LegRecord | None = None
        if reserved.prefill is not None:
            self._prefill_leg = record.leg(Role.PREFILL, reserved.prefill.instance)
        assert reserved.answering is not None
        self._leg = record.leg(reserved.role, reserved.answering.instance)

    @property
    def leg(self) -> LegRecord:
        """Leg to the engine that answers."""
        return self._leg

    @property
    def over(self) -> bool:
        return self._over

    def head(self, status: int, headers: Headers, served: str = "") -> ServedEndpoint:
        """The response begins. `served`: the address of the engine that it is from, if that is said."""
        if self._over or self.record.committed is not None:
            return ServedEndpoint.UNSAID
        found = self._move_to(served)
        if status >= 400:
            error = failure(status, headers, b"", self._leg.instance)
            self._leg.end(error)
            self._failed(self._leg.instance, error)
            rejected = isinstance(error, EngineRejected)
            self._end("engine_rejected" if rejected else error.code or "engine_failed", status)
            return found
        record, reserved, leg = self.record, self._reserved, self._leg
        record.committed = leg.first_byte = record.clock()
        seconds = leg.first_byte - leg.started
        record.handed_over = record.path == DISAGGREGATED
        answering, prefill = reserved.answering, reserved.prefill
        if prefill is not None and self._prefill_leg is not None:
            self._prefill_leg.end(None)
            prefill.worked()
            if self._call.streams:
                # Prefill's part of that time cannot be separated from decode's.
                prefill.read(seconds)
            prefill.end()
            reserved.prefill = None
        for encoder in reserved.encoders:
            encoder.worked()
            encoder.end()
        reserved.encoders = ()
        if answering is not None and self._call.streams:
            answering.has_loaded(0.0) if record.handed_over else answering.has_read(seconds)
        if answering is not None and record.handed_over:
            answering.handed_over()
        return found

    def piece(self, body: bytes) -> None:
        """Take a piece of the answer."""
        self._tail = (
            (self._tail + body)[-TAIL_BYTES:] if len(body) < TAIL_BYTES else body[-TAIL_BYTES:]
        )

    def ended(self) -> None:
        """The answer is whole."""
        if self._over:
            return
        self._leg.end(None)
        answering = self._reserved.answering
        if answering is not None:
            answering.worked()
            answering.end()
            self._reserved.answering = None
        self.record.end_of_answer = self._tail
        self._end("ok", 200)

    def left(self) -> None:
        """End a call whose response will not be whole."""
        if self._over:
            return
        gone = asyncio.CancelledError()
        for leg in (self._prefill_leg, self._leg):
            if leg is not None and leg.ended is None:
                leg.end(gone)
        self._end("client_gone", CLIENT_GONE)

    def _move_to(self, served: str) -> ServedEndpoint:
        """The engines before it in the list failed, as the data plane went on to it."""
        if not served:
            return ServedEndpoint.UNSAID
        at = self.choice.destinations.get(served)
        before = self._leg.instance
        if at is None:
            return ServedEndpoint.ANOTHER
        if at.id == before.id:
            return ServedEndpoint.FIRST
        refused = EngineRefused("the gateway went on to another engine", at=before.id)
        self._leg.end(refused)
        self._failed(before, refused)
        reserved = self._reserved
        if reserved.answering is not None:
            reserved.answering.withdraw()
            reserved.answering = None
        try:
            there = msgspec.structs.replace(self._call, at=at.id)
            reads = reserved.prefill is None
            reserved.answering = self._engines.reserve(
                reserved.role, there, alone=True, reads=reads
            )
        except GatewayError:
            # It is on its way out, and answers all the same.
            pass
        self.record.attempts += 1
        self._leg = self.record.leg(reserved.role, at)
        return ServedEndpoint.FALLBACK

    def _end(self, outcome: str, status: int) -> None:
        self._over = True
        reserved = self._reserved
        held = [reserved.answering, reserved.prefill, *reserved.encoders]
        for leg in (self._prefill_leg, self._leg):
            if leg is not None and leg.ended is None:
                leg.end(asyncio.CancelledError())
        with self._block:
            for one in held:
                if one is not None:
                    one.withdraw()
            self.record.end(outcome, status)
