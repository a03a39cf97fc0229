"""Trace of a decision: why this engine, as known when it was chosen, for operators who look later.

    considered    the engines that the policy could choose, and what it said of each
    rule          by what they were narrowed down, step by step, to the chosen one
    left_out      the engines that it was not asked about, and why not

The rule is applied to what is shown of the engines, so a reader can compute the choice again:

    first_token_seconds at most 4.25     of the engines that were considered
    score within 0.05 of the highest     of these
    least uncached_tokens                of these, and so on; what is equal in the end is drawn

Made only while a reader asks for it (`Scheduler.told`). Nothing here takes part in a choice: a
policy explains by the same functions that it chooses by, afterwards, and draws no lots for it.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from pdgate.protocols.call import Call
from pdgate.protocols.instance import Instance, Role
from pdgate.scheduling.context_length import asked_tokens, prompt_tokens, why_too_short
from pdgate.scheduling.eligible import in_pairs
from pdgate.scheduling.endpoint import Endpoint
from pdgate.scheduling.neighbours import calls_as

MOST_SHOWN: Final = 32
"""Engines of a choice; of more, the chosen one and the first of the others."""

ONLY_ONE: Final = "the only one that could have the call, so no policy was asked"
CHOSEN_BEFORE: Final = (
    "the call is not split, and this one was named for that, so no policy was asked"
)

_ALL_FAILED: Final = "those that could answer after it have failed this call before"
_NO_ROOM: Final = "no engine that could answer after it has room for the call"
_STATES: Final = {
    "drained": "an operator has drained it",
    "down": "it is down",
    "asleep": "it sleeps, or is paused",
    "silent": "it does not answer health checks in time",
    "ejected": "calls keep failing there, so it gets none for a while",
}


NO_VALUES: Final[Mapping[str, float]] = {}

SCORE: Final = "score"


@dataclass(frozen=True, slots=True)
class Weighed:
    """What a policy says of one endpoint.

    Attributes:
        score: The more, the better, among those of one choice; None if it compares nothing.
        why: In a few words, for operators.
        values: Name, with its unit -> what steps of the rule compare.
    """

    instance: str
    score: float | None = None
    why: str = ""
    values: Mapping[str, float] = field(default_factory=lambda: NO_VALUES)

    def value(self, by: str) -> float | None:
        return self.score if by == SCORE else self.values.get(by)

    def as_json(self) -> dict[str, Any]:
        found: dict[str, Any] = {"instance": self.instance}
        if self.score is not None:
            found[SCORE] = self.score
        if self.values:
            found["values"] = dict(self.values)
        return {**found, "why": self.why}


def written(value: float) -> str:
    """A value as it is shown: whole numbers, such as tokens, to their last digit."""
    return str(int(value)) if float(value).is_integer() else f"{value:.6g}"


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a rule: which engines remain, of those that the steps before have left.

    Attributes:
        by: The value that is compared: "score", or one of `Weighed.values`. Engines without it go.
        most: Whether more is better.
        within: Those remain, too, that are worse than the best by no more than this.
        at_most: Those remain that have no more than this, whatever the best has.
        count: So many of the best remain; of equals those that were considered first.
    """

    by: str
    most: bool = False
    within: float = 0.0
    at_most: float | None = None
    count: int | None = None

    def of(self, remaining: Sequence[Weighed]) -> list[Weighed]:
        """All of them, where none has the value, or none is within the limit."""
        valued = [(value, one) for one in remaining if (value := one.value(self.by)) is not None]
        if not valued:
            return [*remaining]
        if self.at_most is not None:
            kept = [one for value, one in valued if value <= self.at_most]
            return kept or [*remaining]
        sign = 1 if self.most else -1
        if self.count is not None:
            valued.sort(key=lambda one: -sign * one[0])
            return [one for _, one in valued[: self.count]]
        best = max(sign * value for value, _ in valued)
        return [one for value, one in valued if sign * value >= best - self.within]

    def __str__(self) -> str:
        if self.at_most is not None:
            return f"{self.by} at most {written(self.at_most)}"
        if self.count is not None:
            return f"the {self.count} with {'most' if self.most else 'least'} {self.by}"
        if self.within:
            return f"{self.by} within {written(self.within)} of the {'highest' if self.most else 'lowest'}"
        return f"{'highest' if self.most else 'lowest'} {self.by}"

    def with_values(self, remaining: Sequence[Weighed], left: Sequence[Weighed]) -> str:
        """The step in words, with what it compared: the values that it left, and the best that it did not."""
        sign = 1 if self.most else -1
        kept = {one.instance for one in left}
        best, others = (
            sorted(
                (v for one in some if (v := one.value(self.by)) is not None),
                key=lambda v: -sign * v,
            )
            for some in (left, [one for one in remaining if one.instance not in kept])
        )
        if not best:
            return str(self)
        first, last = best[0], best[-1]
        values = written(first) if first == last else f"{written(first)} to {written(last)}"
        return f"{self} ({values}, then {written(others[0])})" if others else f"{self} ({values})"

    def as_json(self) -> dict[str, Any]:
        found: dict[str, Any] = {"by": self.by, "best": "most" if self.most else "least"}
        if self.within:
            found["within"] = self.within
        if self.at_most is not None:
            found["at_most"] = self.at_most
        if self.count is not None:
            found["count"] = self.count
        return {**found, "words": str(self)}


Rule = Sequence[Step]

HIGHEST_SCORE: Final = (Step(SCORE, most=True),)


def narrowed(considered: Sequence[Weighed], rule: Rule) -> tuple[list[Weighed], str]:
    """Return those that a rule leaves, and what decided: the last step that left out any, with its values."""
    remaining, decided = [*considered], ""
    for step in rule:
        left = step.of(remaining)
        if len(left) < len(remaining):
            remaining, decided = left, step.with_values(remaining, left)
    if len(remaining) > 1:
        drawn = f"drawn of {len(remaining)} equals"
        decided = f"{decided}, {drawn}" if decided else drawn
    return remaining, decided


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
        rule: How the policy came from those considered to the chosen one; empty if it does not say.
    """

    role: Role
    policy: str
    chosen: str
    considered: Sequence[Weighed]
    left_out: Sequence[LeftOut]
    more: int = 0
    rule: Rule = ()

    @property
    def decided_by(self) -> str:
        """What made the choice, in words; empty where the policy does not say, or not all is shown."""
        if not self.rule or (self.more and len(self.considered) >= MOST_SHOWN):
            return ""
        remaining, decided = narrowed(self.considered, self.rule)
        return decided if self.chosen in {one.instance for one in remaining} else ""

    def as_json(self) -> dict[str, Any]:
        return {
            "role": self.role.value,
            "policy": self.policy,
            "chosen": self.chosen or None,
            "rule": [step.as_json() for step in self.rule],
            "decided_by": self.decided_by,
            "considered": [one.as_json() for one in self.considered],
            "left_out": [one.as_json() for one in self.left_out],
            "more": self.more,
        }


def shown(endpoints: Sequence[Endpoint], chosen: Endpoint) -> Sequence[Endpoint]:
    """The considered endpoints that are shown."""
    if len(endpoints) <= MOST_SHOWN:
        return endpoints
    return [chosen, *[one for one in endpoints if one is not chosen][: MOST_SHOWN - 1]]


def left_out(
    fleet: Iterable[Endpoint],
    considered: Sequence[Endpoint],
    role: Role,
    call: Call,
    avoid: Collection[str],
    peer: Instance | None,
    among: Collection[str] = (),
    most: float | None = None,
    too_long: bool = False,
) -> list[LeftOut]:
    """Those whose role it is, and that were not considered.

    `most`: calls that one may have at a time. `too_long`: the call is, for some of them, so room may be why.
    """
    asked = {endpoint.instance.id for endpoint in considered}
    # It is a wish, which may have left none.
    among = () if asked.isdisjoint(among) else among
    fleet = [*fleet]
    prompt = prompt_tokens(call) if too_long else 0
    needed = prompt + asked_tokens(call) if too_long else 0
    looks_behind = role is Role.PREFILL and (too_long or avoid)
    behind = _why_none_behind(call, fleet, avoid, needed) if looks_behind else {}
    return [
        LeftOut(
            one.instance.id,
            _why_not(one, role, call, avoid, peer, among, most, prompt, needed, behind),
        )
        for one in fleet
        if one.instance.role.serves(role) and one.instance.id not in asked
    ]


def _why_not(
    one: Endpoint,
    role: Role,
    call: Call,
    avoid: Collection[str],
    peer: Instance | None,
    among: Collection[str],
    most: float | None,
    prompt: int,
    needed: int,
    behind: Mapping[str, str],
) -> str:
    """The first reason that holds; those that last come first.

    `prompt`, `needed`: tokens that the call may take of a context, without its answer and with it.
    """
    instance, model = one.instance, call.model
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
    if too_short := why_too_short(call, one, prompt if role is Role.PREFILL else needed):
        return too_short
    if instance.id in behind:
        return behind[instance.id]
    keeps = instance.role is Role.BOTH and one.serves(Role.DECODE)
    if keeps and (too_short := why_too_short(call, one, needed)):
        return too_short
    if among and instance.id not in among:
        return "the call is not split, and stays with those that were named for that"
    if most is not None and calls_as(role, one) >= most:
        return f"it has as many calls as it may ({most:g})"
    if one.careful:
        return f"it is on its way back ({one.state}), and gets only some calls"
    return f"there is no other engine that speaks {instance.speaks} for it to be paired with"


def _why_none_behind(
    call: Call, fleet: Sequence[Endpoint], avoid: Collection[str], needed: int
) -> Mapping[str, str]:
    """Id of a reader that has partners -> why none of them is to answer after it."""
    answering = [
        one
        for one in fleet
        if one.fit and one.serves(Role.DECODE) and (call.model is None or call.model in one.models)
    ]
    left = [one for one in answering if one.instance.id not in avoid] or answering
    roomy = [one for one in left if not why_too_short(call, one, needed)]
    why = {one.instance.id: _ALL_FAILED for one in in_pairs(fleet, answering)}
    why |= {one.instance.id: _NO_ROOM for one in in_pairs(fleet, left)}
    for one in in_pairs(fleet, roomy):
        del why[one.instance.id]
    return why
