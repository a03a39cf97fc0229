"""Zero values: label values that are known before anything has happened.

Prometheus' rate() sees no event in a series that begins with it: between nothing and 1 is no increase.
So counters are shown with 0 from the start wherever there are few values, and all of them known:

    of the fleet            results by the protocols of its engines, legs by their roles
    of a model, once it     outcomes that are an engine's failure or ours, by the paths that its
    is called               calls took
    of none                 statuses, results, decisions

What clients cause (a call that is wrong in one of many ways) begins with its first event.
"""

from collections.abc import Iterable, Iterator
from itertools import product
from typing import Final

from pdgate.protocols.apis import APIS, OTHER, SOUNDS
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
from pdgate.scheduling.disaggregation import Taken, decision
from pdgate.scheduling.endpoint import Endpoint
from pdgate.scheduling.health.liveness import LivenessVerdict
from pdgate.scheduling.roles import SIDES

EJECTIONS: Final = ("refused", "failures", "silent", "stuck", "not well")
GIVEN_UP: Final = tuple(
    found.value for found in LivenessVerdict if found is not LivenessVerdict.ALIVE
)
PICKS: Final = ("first", "fallback", "another", "unsaid")
KEY_REFUSALS: Final = ("model", "rate", "concurrency", "tokens")

_RETRIED: Final = (EngineRefused, EngineFailed, EngineTooSlow, EngineBusy, KvExpired)

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
            decision.NO_ROOM,
        )
    ),
    (Taken.PREFILL_ONLY, decision.ONE_TOKEN),
)
"""Those of rules; why calls must stay whole is known to forwarders, and theirs may be others'."""


Pairs = Iterable[tuple[str, str]]
OfInstances = Iterable[tuple[str, str, str]]
"""Id, role, and the value."""


def routes(_: Iterable[Endpoint]) -> Pairs:
    """Routes of calls that are shown before they are used."""
    return ((route, "ok") for route in (CHAT, COMPLETIONS, *APIS, *SOUNDS, OTHER))


def refusals(_: Iterable[Endpoint]) -> Iterable[str]:
    """Statuses of requests that never became calls."""
    return sorted({str(kind.status) for kind in (*_kinds(BadRequest), *_kinds(Overloaded))})


def reloads(_: Iterable[Endpoint]) -> Iterable[str]:
    return ("taken", "refused")


def handovers(fleet: Iterable[Endpoint]) -> Pairs:
    return product(_protocols(fleet), ("done", "failed", "unknown", "recomputed", "expired"))


def broken_answers(fleet: Iterable[Endpoint]) -> Pairs:
    return product(_protocols(fleet), ("resumed", "lost"))


def retried_legs(fleet: Iterable[Endpoint]) -> Pairs:
    """Retried legs by the roles in which engines of this fleet can be asked."""
    roles = {one.instance.role for one in fleet}
    if Role.BOTH in roles:
        roles = (roles - {Role.BOTH}) | {Role.PREFILL, Role.DECODE}
    outcomes = ("ok", "cancelled", *(error.code or "" for error in _RETRIED))
    return product(sorted(role.value for role in roles), outcomes)


def decisions(fleet: Iterable[Endpoint]) -> Pairs:
    return DECISIONS if _protocols(fleet) else ()


def ejections(fleet: Iterable[Endpoint]) -> OfInstances:
    return _of_each(fleet, EJECTIONS)


def given_up(fleet: Iterable[Endpoint]) -> OfInstances:
    return _of_each(fleet, GIVEN_UP)


def prefill_instances(fleet: Iterable[Endpoint]) -> Iterable[str]:
    return (one.instance.id for one in fleet if one.instance.role.serves(Role.PREFILL))


def picks(_: Iterable[Endpoint]) -> Iterable[str]:
    return PICKS


def role_changes(fleet: Iterable[Endpoint]) -> Pairs:
    both = (one.instance.id for one in fleet if one.instance.role is Role.BOTH)
    return product(both, (side.value for side in SIDES))


def _of_each(fleet: Iterable[Endpoint], values: Iterable[str]) -> OfInstances:
    return ((one.instance.id, one.instance.role.value, it) for one in fleet for it in values)


def _protocols(fleet: Iterable[Endpoint]) -> list[str]:
    """Of engines that take part in split calls."""
    return sorted({one.instance.protocol for one in fleet if one.instance.role is not Role.PLAIN})


def _kinds(of: type[GatewayError]) -> Iterator[type[GatewayError]]:
    yield of
    for kind in of.__subclasses__():
        yield from _kinds(kind)
