"""Summary of a run: what became of all calls together."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pdgate.lab.simulator.outcome import SimulatedOutcome
from pdgate.lab.simulator.spread import Spread, some
from pdgate.lab.simulator.world import Ran
from pdgate.protocols.instance import Role
from pdgate.scheduling.policy_context import Targets


@dataclass(frozen=True, slots=True)
class UrgencySummary:
    """The same of calls of one urgency."""

    calls: int
    goodput: float
    ttft: Spread
    tpot: Spread


@dataclass(frozen=True, slots=True)
class Summary:
    """
    Attributes:
        calls: That came.
        goodput: Share of them that were answered whole, and within the targets.
        came_seconds: From the first call to the last.
        ttft, tpot: Until the first token, and between two tokens, of calls that have these.
        hit_rate: Of all prompt tokens, what the engine that read them had in its cache.
        prefill_busy, decode_busy: Share of the time in which engines were at work, on average. Those
            that do either are among both.
        prefill_imbalance, decode_imbalance: The busiest of them, in terms of the average.
        lost: Why calls have no (whole) answer -> how many.
        retried: Calls that needed more than one attempt.
        local: Calls that decode read itself.
        gave_way: How often a call ended for a more urgent one, and went on later.
        by_urgency: Urgency -> its calls; nothing where all are equally urgent.
        preemptions: How often a call lost its memory.
        moved_tokens: Whose KV went from prefill to decode.
        seconds: Simulated.
    """

    calls: int
    goodput: float
    came_seconds: float
    ttft: Spread
    tpot: Spread
    hit_rate: float
    prefill_busy: float
    decode_busy: float
    prefill_imbalance: float
    decode_imbalance: float
    lost: Mapping[str, int]
    retried: int
    local: int
    preemptions: int
    moved_tokens: int
    seconds: float
    gave_way: int = 0
    by_urgency: Mapping[int, UrgencySummary] = field(default_factory=dict)


def summary(ran: Ran) -> Summary:
    outcomes, plan = ran.outcomes, ran.plan
    good = sum(outcome.good(plan.targets) for outcome in outcomes)
    read = [outcome for outcome in outcomes if outcome.first is not None]
    prompt_tokens = sum(outcome.ask.prompt_tokens for outcome in read)
    busy, busy_decode = (
        [seconds for name, seconds in ran.busy_seconds.items() if ran.roles[name].serves(role)]
        for role in (Role.PREFILL, Role.DECODE)
    )
    return Summary(
        calls=len(outcomes),
        goodput=good / len(outcomes),
        came_seconds=outcomes[-1].ask.at - outcomes[0].ask.at,
        ttft=Spread.of(some(outcome.ttft for outcome in outcomes)),
        tpot=Spread.of(some(outcome.tpot for outcome in outcomes)),
        hit_rate=_share(sum(outcome.found_tokens for outcome in read), prompt_tokens),
        prefill_busy=_share(sum(busy), len(busy) * ran.seconds),
        decode_busy=_share(sum(busy_decode), len(busy_decode) * ran.seconds),
        prefill_imbalance=imbalance(busy),
        decode_imbalance=imbalance(busy_decode),
        lost=dict(sorted(Counter(o.why for o in outcomes if o.why).items())),
        retried=sum(outcome.attempts > 1 for outcome in outcomes),
        local=sum(outcome.local for outcome in outcomes),
        preemptions=ran.preemptions,
        moved_tokens=ran.moved_tokens,
        seconds=ran.seconds,
        gave_way=sum(outcome.gave_way for outcome in outcomes),
        by_urgency=_by_urgency(outcomes, plan.targets),
    )


def _by_urgency(
    outcomes: Sequence[SimulatedOutcome], targets: Targets
) -> Mapping[int, UrgencySummary]:
    kinds = sorted({outcome.ask.urgency for outcome in outcomes})
    found = {}
    for kind in kinds if len(kinds) > 1 else ():
        of_kind = [outcome for outcome in outcomes if outcome.ask.urgency == kind]
        found[kind] = UrgencySummary(
            len(of_kind),
            sum(outcome.good(targets) for outcome in of_kind) / len(of_kind),
            Spread.of(some(outcome.ttft for outcome in of_kind)),
            Spread.of(some(outcome.tpot for outcome in of_kind)),
        )
    return found


def imbalance(busy: Sequence[float]) -> float:
    mean = sum(busy) / len(busy)
    return max(busy) / mean if mean else 1.0


def times(outcomes: Sequence[SimulatedOutcome]) -> tuple[list[float], list[float]]:
    """TTFTs and TPOTs, sorted, for charts."""
    return sorted(some(o.ttft for o in outcomes)), sorted(some(o.tpot for o in outcomes))


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
