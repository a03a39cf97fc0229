"""World of a simulation: a plan, put together and run to its end."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from random import Random

from pdgate.lab.simulator.agenda import Agenda
from pdgate.lab.simulator.encoders import SimulatedEncoders
from pdgate.lab.simulator.fleet import SLICE_SECONDS, Outage, SimulatedFleet, roles_of
from pdgate.lab.simulator.gate import SimulatedGate
from pdgate.lab.simulator.hardware import PRESETS, Hardware
from pdgate.lab.simulator.journey import Journey, Roads
from pdgate.lab.simulator.links import SimulatedLinks
from pdgate.lab.simulator.outcome import SimulatedOutcome
from pdgate.lab.simulator.trace import BLOCK_TOKENS, TraceCall
from pdgate.protocols.instance import Role
from pdgate.scheduling.admission import Limits
from pdgate.scheduling.disaggregation import Always, SplitRule
from pdgate.scheduling.policy import DEFAULT, Policy, load
from pdgate.scheduling.policy_context import PolicyContext, Targets
from pdgate.scheduling.prefix import PrefixIndex
from pdgate.scheduling.scheduler import Scheduler

INDEX_BYTES = 2 * 2**30

Loads = Callable[[str, PolicyContext], Policy]
"""A policy's name -> the policy."""


@dataclass(frozen=True, slots=True)
class WorldPlan:
    """
    Attributes:
        prefill_policy, decode_policy: Names.
        prefills, decodes, both, encoders: Engines that read, that answer, that do either, and that encode media.
        item_seconds: To encode one item.
        staged: Whether decode is chosen when prefill has answered.
        rule: Makes the rule that says which calls are split.
        limits: Of those that are let in at a time.
        decode_hardware: Of engines that answer alone, where they are not like the others.
    """

    prefill_policy: str = DEFAULT
    decode_policy: str = DEFAULT
    prefills: int = 8
    decodes: int = 8
    hardware: Hardware = PRESETS["8b"]
    targets: Targets = field(default_factory=Targets)
    rule: Callable[[], SplitRule] = Always
    limits: Limits = field(default_factory=Limits)
    outages: Sequence[Outage] = ()
    staged: bool = False
    seed: int = 0
    both: int = 0
    encoders: int = 0
    item_seconds: float = 0.1
    decode_hardware: Hardware | None = None


@dataclass(frozen=True, slots=True)
class Ran:
    """What came of it.

    Attributes:
        roles: Instance id -> its role.
        seconds: Of simulated time, until the last call was over.
        busy: Instance id -> busy seconds of each slice of `slice_seconds`.
        busy_seconds: Instance id -> of all the time.
        moved_tokens: Whose KV went from one engine to another.
    """

    plan: WorldPlan
    roles: Mapping[str, Role]
    outcomes: Sequence[SimulatedOutcome]
    seconds: float
    slice_seconds: float
    busy: Mapping[str, Sequence[float]]
    busy_seconds: Mapping[str, float]
    preemptions: int
    moved_tokens: int


def run(
    plan: WorldPlan,
    asks: Sequence[TraceCall],
    *,
    policy: Loads = load,
    progress: Callable[[int], None] = lambda done: None,
) -> Ran:
    """`progress`: called with each call that is over. Raises LookupError, ValueError, TypeError."""
    # One source of chance for each purpose, so that one more draw here changes nothing there.
    seeds = Random(plan.seed)
    agenda = Agenda()
    roles = roles_of(plan.prefills, plan.decodes, plan.both, plan.encoders)
    hardware = {
        name: plan.decode_hardware or plan.hardware if role is Role.DECODE else plan.hardware
        for name, role in roles.items()
    }
    fleet = SimulatedFleet(roles, hardware, agenda, Random(seeds.random()))
    fleet.plan(plan.outages)
    index = PrefixIndex(block_tokens=BLOCK_TOKENS, max_bytes=INDEX_BYTES)

    def of(role: Role, name: str) -> Policy:
        chance = Random(seeds.random())
        return policy(name, PolicyContext(role, index, plan.targets, chance, agenda.clock))

    scheduler = Scheduler(
        fleet.endpoints,
        prefill=of(Role.PREFILL, plan.prefill_policy),
        decode=of(Role.DECODE, plan.decode_policy),
        plain=of(Role.PLAIN, plan.decode_policy),
        rule=plan.rule(),
        prefixes=index,
    )
    gate = SimulatedGate(plan.limits, fleet.endpoints, agenda, scheduler, plan.staged)
    scheduler.freed, scheduler.places = gate.look, plan.limits.places
    roads = Roads(
        agenda,
        scheduler,
        fleet.engines,
        SimulatedLinks(agenda, plan.hardware),
        SimulatedEncoders(agenda, plan.item_seconds, apart=plan.encoders > 0),
        plan.staged,
    )
    journeys: list[Journey] = []

    def come(number: int, ask: TraceCall) -> None:
        def over() -> None:
            progress(1)
            if journey.outcome.began is not None:
                gate.ended(journey)

        def refused() -> None:
            journey.outcome.why = "turned away"
            progress(1)

        journey = Journey(number, ask, roads, over)
        journeys.append(journey)
        journey.come(partial(gate.come, ask.prompt_tokens, journey, journey.begin, refused))
        if number + 1 < len(asks):
            agenda.at(asks[number + 1].at, partial(come, number + 1, asks[number + 1]))

    agenda.at(asks[0].at, partial(come, 0, asks[0]))
    fleet.say_until(asks[-1].at)
    agenda.run()
    outcomes = [journey.outcome for journey in journeys]
    ended = [outcome.ended for outcome in outcomes if outcome.ended is not None]
    return Ran(
        plan,
        roles,
        outcomes,
        max(ended, default=agenda.now),
        SLICE_SECONDS,
        {name: engine.usage.slices for name, engine in fleet.engines.items()},
        {name: engine.usage.busy_seconds for name, engine in fleet.engines.items()},
        sum(engine.preemptions for engine in fleet.engines.values()),
        roads.links.tokens,
    )
