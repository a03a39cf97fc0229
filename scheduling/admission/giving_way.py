"""Giving way: which running calls of low urgency end now, so that a more urgent one that would be late may begin.

    limit that has no room     whose end makes room
    prefill_*                  calls that one prefill engine reads, as many as it takes
    decode_concurrency         any calls of the same engines
    step_seconds, kv_free      calls that one decode engine answers, as many as it takes

A call that gives way keeps the tokens that it has made, and goes on later (forwarders/pausing.py). Only calls that
are less urgent than ordinary ones do (`may_give_way`), so those of who says nothing never pay for it. The least
urgent go first, and of these who has given way least and is the smallest, as its context has to be read again. What an
engine has read of a prompt is lost, so of those that are read the newest go first, none that may be half read, and none
for a call that is late whatever ends. What makes no room ends nothing: if the calls that may give way are not enough, none of them does.

With `give_way` of the limits a call gives way so many times at most. Each RAISED_SECONDS that it waits after that makes it
more urgent by one, so it comes back before newer ones, and is not sent away again by what is no more urgent than it has become.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Final, TypeVar

from pdgate.protocols.instance import DECODE, PLAIN, PREFILL
from pdgate.protocols.priority import MOST_URGENT, ORDINARY
from pdgate.scheduling.account import unread_tokens_there
from pdgate.scheduling.admission.limits import Limits
from pdgate.scheduling.admission.others import NOBODY, OtherProcesses
from pdgate.scheduling.admission.room import (
    calls_at,
    kv_free_of,
    seconds_to_read,
    settled,
    steps_in,
)
from pdgate.scheduling.eligible import EligibleSet
from pdgate.scheduling.endpoint import Endpoint
from pdgate.scheduling.latency.model import TOKENS_PER_SECOND
from pdgate.scheduling.neighbours import prompts_of_this_gateway
from pdgate.scheduling.pipeline.scorers import alone_seconds
from pdgate.scheduling.status import Status

RAISED_SECONDS: Final = 30.0

MOST_LOOKED_AT: Final = 256
"""Running calls in one decision, which holds up all others."""

HARDLY: Final = 0.5

T = TypeVar("T")


@dataclass(frozen=True, slots=True, eq=False)
class RunningCall:
    """One that may give way.

    Attributes:
        urgency: As its waiting has raised it.
        gave_way: How often.
        reading: The engine that reads its prompt now; empty for none.
        unread_tokens: That this engine has to read for it.
        reads_for: Seconds since that engine was asked.
        answering: The engine that answers it, or is to; empty for none.
        tokens: Of its prompt, and of its answer so far.
        counts: It is one of the calls of the engines at which room is sought.
    """

    urgency: int
    gave_way: int = 0
    reading: str = ""
    unread_tokens: int = 0
    reads_for: float = 0.0
    answering: str = ""
    tokens: int = 0
    counts: bool = True


def may_give_way(urgency: int) -> bool:
    """Whether calls that are as urgent as that ever do."""
    return urgency > ORDINARY


def raised(urgency: int, waited_seconds: float) -> int:
    """The urgency of a call that has waited for so long since it gave way."""
    return max(MOST_URGENT, urgency - int(waited_seconds / RAISED_SECONDS))


def looked_at(running: Sequence[Collection[T]], begin: int) -> tuple[list[T], int]:
    """Of calls that run, the least urgent first, those that one decision looks at: MOST_LOOKED_AT from there on, and round
    again; and where the next one begins if these are not enough, as they may be at other engines, or cannot be paused.
    """
    count = sum(map(len, running))
    if count <= MOST_LOOKED_AT:
        return [*chain.from_iterable(running)], 0
    begin %= count
    twice = chain.from_iterable((*running, *running))
    return [*islice(twice, begin, begin + MOST_LOOKED_AT)], (begin + MOST_LOOKED_AT) % count


def would_be_late(
    limits: Limits, eligible: EligibleSet, tokens: int, waited: float, expected_wait: float | None
) -> bool:
    """Whether a call without room misses its target if nothing gives way.

    `expected_wait`: for room, by the pace of the line; None while nothing is known of it, and then it would be.
    """
    if expected_wait is None:
        return True
    read = seconds_to_read(eligible, tokens)
    return waited + expected_wait + (read or 0.0) > limits.target_seconds


def can_be_in_time(limits: Limits, eligible: EligibleSet, tokens: int, waited: float) -> bool:
    """Whether a call that begins now keeps its target, at an engine that reads nothing else."""
    engines = eligible.up[PREFILL if eligible.disaggregated else PLAIN]
    alone = min((alone_seconds(engine, tokens) for engine in engines), default=0.0)
    return waited + alone <= limits.target_seconds


def who_gives_way(
    limits: Limits,
    eligible: EligibleSet,
    urgency: int,
    begun: int,
    running: Sequence[RunningCall],
    others: OtherProcesses = NOBODY,
    freed: Mapping[str, Status | None] | None = None,
    in_time: bool = True,
) -> list[RunningCall]:
    """The calls that are to end so that one of this urgency finds room; none if it finds it, or cannot.

    Args:
        begun: Calls of the engines of its model that have begun and not ended.
        freed: Engine -> what it had said of its pages when calls gave way there last; what it frees shows in what it says next.
        in_time: The one that waits can still be in time.
    """
    low = [
        one
        for one in running
        if one.urgency > urgency and one.gave_way < limits.give_way and (in_time or not one.reading)
    ]
    low.sort(key=lambda one: (-one.urgency, one.gave_way, one.tokens))
    whole = not eligible.disaggregated and bool(eligible.up[PLAIN])
    answers_as = PLAIN if whole else DECODE
    answering = settled(eligible, answers_as)
    reads = _to_read(limits, answering if whole else settled(eligible, PREFILL), low, whole)
    answers = _to_answer(limits, answering, low, freed or {})
    if reads is None or answers is None:
        return []
    chosen = dict.fromkeys([*reads, *answers])
    places = limits.decode_concurrency
    if places is not None and answering:
        # What ends at an engine that gets no more calls, or not all of them, leaves no place to another one.
        elsewhere = {engine.instance.id for engine in (*eligible.leaving, *eligible.up[answers_as])}
        elsewhere -= {engine.instance.id for engine in answering}
        count = [one for one in low if one.counts and one.answering not in elsewhere]
        taken = calls_at(places, eligible, answers_as, begun, others)
        missing = sum(taken) + 1 - places * len(answering)
        missing -= sum(one in chosen for one in count)
        more = [one for one in count if one not in chosen][: max(0, missing)]
        if len(more) < missing:
            return []
        chosen.update(dict.fromkeys(more))
    return list(chosen)


def _to_read(
    limits: Limits, engines: Sequence[Endpoint], low: Sequence[RunningCall], whole: bool
) -> list[RunningCall] | None:
    """None if all of them would not do. `whole`: the engines answer as well."""
    most, places = limits.prefill_seconds, None if whole else limits.prefill_concurrency
    newest_first = sorted(low, key=lambda one: (-one.urgency, one.reads_for))

    def has_room(engine: Endpoint, without: Sequence[RunningCall]) -> bool:
        if (
            places is not None
            and prompts_of_this_gateway(engine) - sum(map(only_reads, without)) >= places
        ):
            return False
        if most is None or _waiting_seconds(engine, without) < most:
            return True
        return unread_tokens_there(engine) <= sum(one.unread_tokens for one in without)

    def only_reads(one: RunningCall) -> bool:
        return one.reading != one.answering

    def there(one: RunningCall) -> str:
        return one.reading if most is not None or only_reads(one) else ""

    return _fewest(engines, newest_first, there, has_room, _is_hardly_read)


def _to_answer(
    limits: Limits,
    engines: Sequence[Endpoint],
    low: Sequence[RunningCall],
    freed: Mapping[str, Status | None],
) -> list[RunningCall] | None:
    most, kv_free = limits.step_seconds, limits.kv_free

    def there(one: RunningCall) -> str:
        return one.answering

    def steps(engine: Endpoint, without: Sequence[RunningCall]) -> bool:
        tokens = sum(one.tokens for one in without)
        return most is None or steps_in(most, engine, len(without), tokens)

    def pages(engine: Endpoint, without: Sequence[RunningCall]) -> bool:
        return kv_free is None or _kv_free(engine, without, freed) >= kv_free

    for_steps = _fewest(engines, low, there, steps)
    for_pages = _fewest(engines, low, there, pages)
    if for_steps is None or for_pages is None:
        return None
    return [*for_steps, *(one for one in for_pages if one not in for_steps)]


def _fewest(
    engines: Sequence[Endpoint],
    low: Sequence[RunningCall],
    there: Callable[[RunningCall], str],
    has_room: Callable[[Endpoint, Sequence[RunningCall]], bool],
    may: Callable[[Endpoint, RunningCall], bool] = lambda engine, one: True,
) -> list[RunningCall] | None:
    """Of the engines, the calls of that one where fewest have to end; none where one has room already."""
    if not engines or any(has_room(engine, ()) for engine in engines):
        return []
    at: dict[str, list[RunningCall]] = {}
    for one in low:
        at.setdefault(there(one), []).append(one)
    best: list[RunningCall] | None = None
    for engine in engines:
        mine = [one for one in at.get(engine.instance.id, []) if may(engine, one)]
        for count in range(1, len(mine) + 1):
            if best is not None and count >= len(best):
                break
            if has_room(engine, mine[:count]):
                best = mine[:count]
    return best


def _is_hardly_read(engine: Endpoint, one: RunningCall) -> bool:
    """Less than half, whatever was before it. Of an engine that has shown nothing yet that cannot be known."""
    alone = engine.latency.prefill_seconds(one.unread_tokens, one.unread_tokens**2)
    return alone is None or one.reads_for < HARDLY * alone


def _waiting_seconds(engine: Endpoint, without: Sequence[RunningCall]) -> float:
    unread = [one.unread_tokens for one in without]
    tokens = max(0, unread_tokens_there(engine) - sum(unread))
    squares = max(0.0, engine.unread_squares - sum(each * each for each in unread))
    expected = engine.latency.prefill_seconds(tokens, squares)
    return tokens / TOKENS_PER_SECOND if expected is None else expected


def _kv_free(
    engine: Endpoint, without: Sequence[RunningCall], freed: Mapping[str, Status | None]
) -> float:
    status, name = engine.status, engine.instance.id
    if without and status is not None and freed.get(name) is status:
        # What has been freed there is not in what it said.
        return 0.0
    said = kv_free_of(engine)
    if not without or status is None or not status.kv_tokens:
        return said if not without else 1.0
    return said + sum(one.tokens for one in without) / status.kv_tokens
