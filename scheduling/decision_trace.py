"""Trace of a decision: why this engine, as known when it was chosen, for operators who look later.

    considered    the engines that the policy could choose, and what it said of each
    left_out      the engines that it was not asked about, and why not

Made only while a reader asks for it (`Scheduler.told`). Nothing here takes part in a choice: a
policy explains by the same functions that it chooses by, afterwards, and draws no lots for it.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pdgate.protocols.instance import Instance, Role
from pdgate.scheduling.endpoint import Endpoint

MOST_SHOWN: Final = 32
"""Engines of a choice; of more, the chosen one and the first of the others."""

ONLY_ONE: Final = "the only one that could have the call, so no policy was asked"

_STATES: Final = {
    "drained": "an operator has drained it",
    "down": "it is down",
    "silent": "it does not answer health checks in time",
    "ejected": "calls keep failing there, so it gets none for a while",
}


@dataclass(frozen=True, slots=True)
class Weighed:
    """What a policy says of one endpoint.

    Attributes:
        score: The more, the better, among those of one choice; None if it compares nothing.
        why: In a few words, for operators.
    """

    instance: str
    score: float | None = None
    why: str = ""

    def as_json(self) -> dict[str, Any]:
        found: dict[str, Any] = {"instance": self.instance}
        if self.score is not None:
            found["score"] = round(self.score, 6)
        return {**found, "why": self.why}


@dataclass(frozen=True, slots=True)
class LeftOut:
    instance: str
    why: str

    def as_json(self) -> dict[str, Any]:
        return {"instance": self.instance, "why": self.why}


@dataclass(frozen=True, slots=True)
class DecisionTrace:
    """Decision for one leg, and its reasons.

    Attributes:
        policy: Its name; empty where none was asked.
        chosen: The id of an instance; empty if there was none to choose.
        more: Of either kind, so many are not shown.
    """

    role: Role
    policy: str
    chosen: str
    considered: Sequence[Weighed]
    left_out: Sequence[LeftOut]
    more: int = 0

    def as_json(self) -> dict[str, Any]:
        return {
            "role": self.role.value,
            "policy": self.policy,
            "chosen": self.chosen or None,
            "considered": [one.as_json() for one in self.considered],
            "left_out": [one.as_json() for one in self.left_out],
            "more": self.more,
        }


def shown(endpoints: Sequence[Endpoint], chosen: Endpoint) -> Sequence[Endpoint]:
    """Of those that were considered."""
    if len(endpoints) <= MOST_SHOWN:
        return endpoints
    return [chosen, *[one for one in endpoints if one is not chosen][: MOST_SHOWN - 1]]


def left_out(
    fleet: Iterable[Endpoint],
    considered: Sequence[Endpoint],
    role: Role,
    model: str | None,
    avoid: Collection[str],
    peer: Instance | None,
) -> list[LeftOut]:
    """Those whose role it is, and that were not considered."""
    asked = {endpoint.instance.id for endpoint in considered}
    return [
        LeftOut(one.instance.id, _why_not(one, role, model, avoid, peer))
        for one in fleet
        if one.instance.role.serves(role) and one.instance.id not in asked
    ]


def _why_not(
    one: Endpoint, role: Role, model: str | None, avoid: Collection[str], peer: Instance | None
) -> str:
    """The first reason that holds; those that last come first."""
    instance = one.instance
    if peer is not None and instance.id == peer.id:
        return "it has the other half of the call"
    if model is not None and model not in one.models:
        served = ", ".join(sorted(one.models))
        return f"it serves {served}" if served else "it has not named its models yet"
    if peer is not None and instance.speaks != peer.speaks:
        return f"it speaks {instance.speaks}, the other half {peer.speaks}"
    if one.state in _STATES:
        return _STATES[one.state]
    if instance.id in avoid:
        return "it has failed this call before"
    if not one.serves(role):
        return "it is to serve the other side now"
    if one.careful:
        return f"it is on its way back ({one.state}), and gets only some calls"
    return f"there is no other engine that speaks {instance.speaks} for it to be paired with"
