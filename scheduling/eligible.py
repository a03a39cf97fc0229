"""Eligible set of one model now: the instances that serve it, and may have this call. Pure.

Never empty while an engine is there: if none of a role is fit, those that are doubted (their
calls fail, or they did not answer a probe in time) may serve after all, as may those whose
doubted partner would be the only one, and those whose role allows it, but that are to serve the
other side. An engine that refused a connection, said that it is not
well, or is drained, serves no call.

While some are only on their way back, not every call is for them. On trial: one call at a time.
Returned from an outage: a share of the calls that grows evenly from LEAST to all, as caches are cold
and the others' load would come down on it at once. The share is drawn, so it holds under every
policy.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from pdgate.protocols.instance import Role
from pdgate.protocols.place import Place
from pdgate.scheduling.endpoint import Endpoint
from pdgate.scheduling.health.breaker import TRIAL

LEAST: Final = 0.1
_READ_NONE: Final = (Role.DECODE, Role.ENCODE)
_ANSWER_NONE: Final = (Role.PREFILL, Role.ENCODE)


@dataclass(frozen=True, slots=True)
class EligibleSet:
    """Eligible set: the instances that can serve one model now.

    Attributes:
        up: Role -> endpoints that may be sent calls; if there are pairs, then for prefill and
            decode only those that are in one.
        disaggregated: Whether there are pairs: two instances that speak the same.
        mixed: Whether not everyone pairs with everyone: there are pairs of several protocols,
            or roles change, so that prefill may have become decode, and is not its own.
        careful: Whether some instance may have only some of the calls.
        placed: Whether some pairs are nearer to each other than others.
        several_read: Whether it matters which instance has which prompts cached: more than one
            instance reads prompts, in whatever state it is now.
        model: Its name.
        shortest: Tokens of the shortest context of these; 0 where none says how long it is.
        uneven: Whether one of these may have room for a call that another one has none for.
        longest: Of all engines of the model that answer, in whatever state, tokens of the longest context: more is
            refused by all of them. 0 where one of them says no length, or may cut what is longer.
        leaving: Engines that answer calls, and get no more of them to answer now; of those that serve the same models, as
            calls are not counted for each model and engine.
    """

    up: dict[Role, Sequence[Endpoint]] = field(default_factory=dict)
    disaggregated: bool = False
    mixed: bool = False
    careful: bool = False
    placed: bool = False
    several_read: bool = False
    model: str = ""
    shortest: int = 0
    uneven: bool = False
    longest: int = 0
    leaving: Sequence[Endpoint] = ()


def eligible_of(
    serving: Sequence[Endpoint],
    *,
    roles_change: bool = False,
    model: str = "",
    removed: Sequence[Endpoint] = (),
) -> EligibleSet:
    """Of all that serve the model, in whatever state. `removed`: those that did, and are no instances any more."""
    doubted = [c for c in serving if c.may_serve]
    fit = [c for c in doubted if c.fit]
    plain, prefill, decode = (
        _of(role, fit) or _of(role, doubted) for role in (Role.PLAIN, Role.PREFILL, Role.DECODE)
    )
    paired = in_pairs(prefill, decode), in_pairs(decode, prefill)
    if not paired[0] and not _of(Role.PLAIN, fit):
        whole = _of(Role.PREFILL, doubted), _of(Role.DECODE, doubted)
        paired = in_pairs(*whole), in_pairs(*reversed(whole))
    disaggregated = bool(paired[0])
    if disaggregated:
        prefill, decode = paired
    up: dict[Role, Sequence[Endpoint]] = {
        Role.PREFILL: prefill,
        Role.DECODE: decode,
        Role.PLAIN: plain,
        Role.ENCODE: _of(Role.ENCODE, fit) or _of(Role.ENCODE, doubted),
    }
    serving_texts = [*prefill, *decode, *plain]
    answering = set(decode if disaggregated or not plain else plain)
    return EligibleSet(
        up,
        disaggregated,
        mixed=roles_change or len({c.instance.speaks for c in prefill}) > 1,
        careful=any(c.careful for several in up.values() for c in several),
        placed=disaggregated and _placed(prefill, decode),
        several_read=sum(c.instance.role not in _READ_NONE for c in serving) > 1,
        model=model,
        shortest=min(
            (c.lengths[model] for c in serving_texts if model in c.lengths),
            default=0,
        ),
        uneven=len({c.lengths.get(model) for c in serving_texts}) > 1,
        longest=longest_of([c for c in serving if c.instance.role not in _ANSWER_NONE], model),
        leaving=[
            c
            for c in (*serving, *removed)
            if c.calls > c.prefills
            and c.instance.role not in _ANSWER_NONE
            and c not in answering
            and all(c.models == one.models for one in answering)
        ],
    )


def longest_of(answering: Sequence[Endpoint], model: str) -> int:
    """Tokens above which all of them refuse a call; 0 where one may not."""
    found = [c.lengths.get(model, 0) if c.strict else 0 for c in answering]
    return max(found) if found and all(found) else 0


def admitted(
    endpoints: Sequence[Endpoint],
    now: float,
    slow_start_seconds: float,
    draw: Callable[[], float],
) -> Sequence[Endpoint]:
    """Return those that may have this call; all of them if it is none.

    `draw` gives numbers from 0 to below 1.
    """

    def may(endpoint: Endpoint) -> bool:
        if endpoint.breaker.state is TRIAL:
            return not endpoint.trials
        since = endpoint.returned
        return since is None or draw() < _share(now - since, slow_start_seconds)

    return [c for c in endpoints if may(c)] or endpoints


def _share(seconds: float, slow_start_seconds: float) -> float:
    """Of the calls that it would get otherwise, so many seconds after its return."""
    return max(LEAST, min(1.0, seconds / slow_start_seconds)) if slow_start_seconds else 1.0


def _of(role: Role, some: Sequence[Endpoint]) -> list[Endpoint]:
    return [c for c in some if c.serves(role)] or [c for c in some if c.instance.role.serves(role)]


def _placed(prefill: Sequence[Endpoint], decode: Sequence[Endpoint]) -> bool:
    places = [{c.instance.place for c in side} for side in (prefill, decode)]
    if len(places[0] | places[1]) == 1:
        return False
    of_prefill, of_decode = ({part for at in side for part in _parts(at)} for side in places)
    return not of_prefill.isdisjoint(of_decode)


def _parts(at: Place) -> Iterator[tuple[str, ...]]:
    """What two that are not far from each other have one of in common."""
    if at.host:
        yield ("host", at.host)
    if at.rack:
        yield ("rack", at.zone, at.rack)
    if at.zone:
        yield ("zone", at.zone)


def in_pairs(some: Sequence[Endpoint], others: Sequence[Endpoint]) -> list[Endpoint]:
    """Those that have a partner among the others; none pairs with itself."""
    who_speak = Counter(c.instance.speaks for c in others)
    ids = {c.instance.id for c in others}

    def itself(endpoint: Endpoint) -> int:
        return 1 if endpoint.instance.id in ids else 0

    return [c for c in some if who_speak[c.instance.speaks] > itself(c)]
