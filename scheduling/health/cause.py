"""Cause of a failed leg: whose fault it is.

    call        the engine said so itself (4xx), or we did before asking it
    load        the engine is well and full (503), or its queue longer than KV is kept
    engine      it took the call and failed, or fell silent
    transport   there was no connection to be had
    ours        anything else

Only `engine` and `transport` say something of the engine's health. Peers that count 4xx and
503 as well have emptied whole fleets by them (sglang#25811, vllm-project/router#60).
"""

from enum import StrEnum

from pdgate.protocols.errors import (
    BadRequest,
    EngineBusy,
    EngineFailed,
    EngineRefused,
    EngineRejected,
    GatewayError,
    KvExpired,
)
from pdgate.protocols.members import plain_members


@plain_members
class Cause(StrEnum):
    CALL = "call"
    LOAD = "load"
    ENGINE = "engine"
    TRANSPORT = "transport"
    OURS = "ours"


def cause_of(error: GatewayError) -> Cause:
    match error:
        case EngineRefused():
            return Cause.TRANSPORT
        case EngineBusy() | KvExpired():
            return Cause.LOAD
        case EngineFailed():
            return Cause.ENGINE
        case EngineRejected() | BadRequest():
            return Cause.CALL
        case _:
            return Cause.OURS
