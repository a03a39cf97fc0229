"""Label values that are known before anything has happened.

Prometheus' rate() sees no event in a series that begins with it: between nothing and 1 is no increase.
So counters are told with 0 from the start wherever there are few values, and all of them known:

    of the fleet            results by the protocols of its engines, legs by their roles
    of a model, once it     outcomes that are an engine's failure or ours, by the paths that its
    is called               calls took
    of none                 statuses, results, decisions

What clients cause (a call that is wrong in one of many ways) begins with its first event.
"""

from collections.abc import Iterable, Iterator
from typing import Final

from pdgate.protocols.apis import APIS, OTHER
from pdgate.protocols.call import CHAT, COMPLETIONS
from pdgate.protocols.errors import (
    BadRequest,
    CallBreaksEngines,
    CallTooLong,
    EngineBusy,
    EngineFailed,
    EngineRefused,
    EngineTooSlow,
    GatewayError,
    KvExpired,
    Overloaded,
)
from pdgate.protocols.instance import Role
from pdgate.scheduling.candidate import Candidate
from pdgate.scheduling.disaggregation import Taken, decision

HANDOVERS: Final = ("done", "failed", "unknown", "recomputed", "expired")
BREAKS: Final = ("resumed", "lost")
EJECTIONS: Final = ("refused", "failures", "silent", "not well")
RELOADS: Final = ("taken", "refused")
KEY_REFUSALS: Final = ("model", "rate", "concurrency")

_RETRIED: Final = (EngineRefused, EngineFailed, EngineTooSlow, EngineBusy, KvExpired)

LEGS: Final = ("ok", "cancelled", *(error.code or "" for error in _RETRIED))
"""How legs end of an attempt that is followed by another."""

OUTCOMES: Final = (
    "ok",
    "client_gone",
    "internal_error",
    *(error.code or "" for error in (*_RETRIED, CallBreaksEngines, CallTooLong)),
)
"""Of calls for which an engine was found, but for those that are the client's fault."""

DECISIONS: Final[tuple[tuple[str, str], ...]] = (
    *(
        (Taken.SPLIT, reason)
        for reason in (
            decision.ALWAYS,
            decision.LONG_PROMPT,
            decision.SOONER,
            decision.MEASURING,
            decision.DECODE_CANNOT_PREFILL,
        )
    ),
    *(
        (Taken.LOCAL, reason)
        for reason in (
            decision.NEVER,
            decision.SHORT_PROMPT,
            decision.PREFILL_IS_BUSY,
            decision.SOONER,
            decision.MEASURING,
            decision.NO_PREFILL,
        )
    ),
    (Taken.PREFILL_ONLY, decision.ONE_TOKEN),
)
"""Those of rules; why calls must stay whole is known to forwarders, and theirs may be others'."""


ROUTES: Final = tuple((route, "ok") for route in (CHAT, COMPLETIONS, *APIS, OTHER))
"""(route, outcome): that one begins to be used."""


def _kinds(of: type[GatewayError]) -> Iterator[type[GatewayError]]:
    yield of
    for kind in of.__subclasses__():
        yield from _kinds(kind)


REFUSALS: Final = tuple(
    sorted({str(kind.status) for kind in (*_kinds(BadRequest), *_kinds(Overloaded))})
)
"""Statuses of requests that never became calls."""


def protocols(fleet: Iterable[Candidate]) -> list[str]:
    """Of engines that take part in split calls."""
    return sorted({one.instance.protocol for one in fleet if one.instance.role is not Role.PLAIN})


def leg_roles(fleet: Iterable[Candidate]) -> list[str]:
    """In which engines of this fleet can be asked."""
    roles = {one.instance.role for one in fleet}
    if Role.BOTH in roles:
        roles = (roles - {Role.BOTH}) | {Role.PREFILL, Role.DECODE}
    return sorted(role.value for role in roles)
