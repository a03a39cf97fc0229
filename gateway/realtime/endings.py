"""Endings of a session: what ended it, what goes to either side, and what the log says of it.

What comes first decides (relay.py). A code is one of RFC 6455, section 7.4.1, or 1013 of its registry at IANA.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from http import HTTPStatus
from typing import Final

from wsproto.events import CloseConnection
from wsproto.frame_protocol import CloseReason

from pdgate.gateway import errors
from pdgate.gateway.service import CLIENT_GONE
from pdgate.protocols.errors import (
    BadRequest,
    CallTooLong,
    ClientTooSlow,
    Draining,
    EngineFailed,
    GatewayError,
    OutOfMemory,
)

_ABNORMAL: Final = CloseReason.ABNORMAL_CLOSURE


class SessionOutcome(StrEnum):
    """What ended a session."""

    CLOSED = "closed"
    CLIENT_GONE = "client_gone"
    BAD_FRAME = "bad_frame"
    TOO_LARGE = "too_large"
    FORBIDDEN = "forbidden"
    OUT_OF_TOKENS = "out_of_tokens"
    ENGINE_FAILED = "engine_failed"
    IDLE = "idle"
    STALLED = "stalled"
    TOO_LONG = "too_long"
    OUT_OF_MEMORY = "out_of_memory"
    DRAINING = "draining"
    INTERNAL_ERROR = "internal_error"


@dataclass(frozen=True, slots=True)
class SessionEnding:
    """
    Attributes:
        code, reason: Those that the client gets; no code for a goodbye that had none.
        engine_code: What the engine gets, as far as it is there.
        error: Said to the client before, as an event.
    """

    outcome: SessionOutcome
    code: int | None
    reason: str
    engine_code: int | None = CloseReason.GOING_AWAY
    error: GatewayError | None = None

    @property
    def as_call(self) -> tuple[str, int]:
        """Outcome and status, as the records of calls have them."""
        if self.error is not None:
            return errors.outcome_of(self.error)
        return _AS_CALL[self.outcome]


_OF_ERRORS: Final[Mapping[SessionOutcome, type[GatewayError]]] = {
    SessionOutcome.BAD_FRAME: BadRequest,
    SessionOutcome.IDLE: ClientTooSlow,
    SessionOutcome.TOO_LONG: CallTooLong,
    SessionOutcome.OUT_OF_MEMORY: OutOfMemory,
    SessionOutcome.DRAINING: Draining,
}
_AS_CALL: Final[Mapping[SessionOutcome, tuple[str, int]]] = {
    SessionOutcome.CLOSED: ("ok", HTTPStatus.SWITCHING_PROTOCOLS.value),
    SessionOutcome.CLIENT_GONE: ("client_gone", CLIENT_GONE),
    SessionOutcome.STALLED: ("client_gone", CLIENT_GONE),
    **{outcome: errors.outcome_of(of("")) for outcome, of in _OF_ERRORS.items()},
}
"""What a call that ends so says; all others have an error."""


class SessionEnds(Exception):
    """Raised where a session ends by what one side did."""

    def __init__(self, ending: SessionEnding) -> None:
        super().__init__(ending.reason)
        self.ending = ending


def engine_left(event: CloseConnection, broken: str, at: str) -> SessionEnding:
    """`at`: the engine's id."""
    if broken:
        return failed("the engine sent what is no WebSocket frame", at)
    if event.code == _ABNORMAL:
        return failed("the engine broke off", at)
    code = None if event.code == CloseReason.NO_STATUS_RCVD else event.code
    return SessionEnding(SessionOutcome.CLOSED, code, event.reason or "", code)


def client_left(event: CloseConnection, broken: str) -> SessionEnding:
    if broken:
        return SessionEnding(SessionOutcome.BAD_FRAME, event.code, broken)
    if event.code == _ABNORMAL:
        return GONE
    code = None if event.code == CloseReason.NO_STATUS_RCVD else event.code
    return SessionEnding(SessionOutcome.CLOSED, code, event.reason or "", code)


def failed(what: str, at: str) -> SessionEnding:
    error = EngineFailed(what, at=at)
    return SessionEnding(
        SessionOutcome.ENGINE_FAILED, CloseReason.INTERNAL_ERROR, what, error=error
    )


GONE: Final = SessionEnding(SessionOutcome.CLIENT_GONE, CloseReason.GOING_AWAY, "")
