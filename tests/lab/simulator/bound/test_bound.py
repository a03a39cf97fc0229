"""The offline bound: above every run, and not far above the best one."""

from collections.abc import Sequence
from dataclasses import replace
from math import inf
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from pdgate.lab.simulator.bound import SERVED, bound, capacity
from pdgate.lab.simulator.bound.needs import pools
from pdgate.lab.simulator.hardware import PRESETS
from pdgate.lab.simulator.synthetic import conversations
from pdgate.lab.simulator.trace import BLOCK_TOKENS, TraceCall, faster, hashed
from pdgate.lab.simulator.world import WorldPlan, run
from pdgate.scheduling.disaggregation import Always, Never, UncachedTokensAbove
from pdgate.scheduling.policy_context import Targets

SMALL = replace(PRESETS["8b"], kv_tokens=60_000)
TARGETS = Targets(5.0, 0.025)
POLICIES = ("slo", "prefix_then_load", "least_loaded", "round_robin")


def calls(random: Random, count: int, per_second: float, shared: float) -> list[TraceCall]:
    """At random times, a part of which begins as an earlier one does."""
    at, fresh, asks = 0.0, 0, list[TraceCall]()
    for _ in range(count):
        at += random.expovariate(per_second)
        blocks = list[int]()
        if asks and random.random() < shared:
            earlier = random.choice(asks).blocks
            blocks += earlier[: random.randint(0, len(earlier))]
        wanted = min(60_000, round(14_000 * random.lognormvariate(0, 0.8)))
        tokens = max(300, len(blocks) * BLOCK_TOKENS, wanted)
        while len(blocks) < tokens // BLOCK_TOKENS:
            fresh += 1
            blocks.append(hashed(fresh))
        asks.append(TraceCall(at, tokens, random.randint(1, 200), tuple(blocks)))
    return asks


def in_time(plan: WorldPlan, asks: Sequence[TraceCall]) -> int:
    return sum(outcome.good(plan.targets) for outcome in run(plan, asks).outcomes)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    load=st.sampled_from([0.3, 1.0, 3.0, 10.0]),
    shared=st.sampled_from([0.0, 0.4, 0.9]),
    engines=st.sampled_from([(1, 1, 0), (2, 1, 0), (1, 3, 0), (0, 0, 2), (1, 1, 1)]),
    rule=st.sampled_from([Always, Never, lambda: UncachedTokensAbove(4000)]),
    policy=st.sampled_from(POLICIES),
    tpot=st.sampled_from([0.0095, 0.012, 0.025]),
)
def test_no_run_exceeds_it(
    seed: int,
    load: float,
    shared: float,
    engines: tuple[int, int, int],
    rule: type[Always],
    policy: str,
    tpot: float,
) -> None:
    """Also where caches are full, answers crowd, and engines do either."""
    asks = calls(Random(seed), 40, load * sum(engines), shared)
    prefills, decodes, both = engines
    plan = WorldPlan(
        policy, policy, prefills, decodes, SMALL, Targets(5.0, tpot), rule, both=both, seed=seed
    )
    limit = bound(plan, asks)

    assert in_time(plan, asks) <= limit.in_time <= limit.possible <= limit.calls
    assert limit.in_time_lru <= limit.in_time


def test_it_is_within_a_tenth_of_the_best_of_all_orders() -> None:
    """Of all orders and shares of up to 12 calls over two engines, none interrupted."""
    limits, bests = 0, 0
    for seed in range(32):
        random = Random(seed)
        count = random.randint(8, 12)
        plan = WorldPlan(prefills=2, decodes=1, targets=TARGETS)
        asks = calls(random, count, random.choice([2.0, 6.0, 16.0, 40.0]), 0.3)

        best, limit = exhaustive(plan, asks), bound(plan, asks).in_time

        assert best <= limit <= best + 1
        limits, bests = limits + limit, bests + best
    assert limits <= 1.1 * bests


def exhaustive(plan: WorldPlan, asks: Sequence[TraceCall]) -> int:
    """How many of the calls two prefill engines can read in time, one after the other."""
    hardware, window, count = plan.hardware, pools(plan).window, len(asks)

    def seconds(call: TraceCall, earlier: Sequence[TraceCall]) -> float:
        have = {block for other in earlier for block in other.blocks}
        begins = 0
        for block in call.blocks[: (call.prompt_tokens - 1) // BLOCK_TOKENS]:
            if block not in have:
                break
            begins += BLOCK_TOKENS
        taken = 0.0
        while begins < call.prompt_tokens:
            tokens = min(hardware.step_tokens, call.prompt_tokens - begins)
            taken += hardware.step_seconds(0, 0, tokens, tokens * (begins + tokens / 2))
            begins += tokens
        return taken

    def of(chosen: int) -> list[int]:
        return [number for number in range(count) if chosen >> number & 1]

    # Of each set of calls, the soonest end at one engine that has all of them in time.
    ends = [0.0] + [inf] * (2**count - 1)
    for chosen in range(1, 2**count):
        for last in of(chosen):
            others = chosen ^ 1 << last
            if ends[others] < inf:
                took = seconds(asks[last], [asks[number] for number in of(others)])
                end = max(ends[others], asks[last].at) + took
                if end <= asks[last].at + window:
                    ends[chosen] = min(ends[chosen], end)
    most = [chosen.bit_count() if ends[chosen] < inf else 0 for chosen in range(2**count)]
    for number in range(count):
        for chosen in range(2**count):
            if chosen >> number & 1:
                most[chosen] = max(most[chosen], most[chosen ^ 1 << number])
    everything: int = 2**count - 1
    return max(
        chosen.bit_count() + most[everything ^ chosen]
        for chosen in range(2**count)
        if ends[chosen] < inf
    )


def test_a_smaller_cache_and_fewer_decodes_make_it_less() -> None:
    """Both sides and the cache count, also where prefill alone has time for all."""
    # Sixteen programs in turn, each with a beginning of its own that takes more than a second to read.
    asks = [
        TraceCall(n / 2, 20_500, 400, tuple(hashed(100 * (n % 16) + block) for block in range(40)))
        for n in range(200)
    ]
    plenty = WorldPlan(prefills=1, decodes=2, targets=TARGETS)
    forgetful = replace(plenty, hardware=replace(SMALL, kv_tokens=25_000))

    # The beginnings alone take longer than until they are first due.
    assert bound(plenty, asks).in_time >= 190
    assert bound(forgetful, asks).in_time < 160
    crowded = replace(plenty, decodes=1)
    assert bound(crowded, faster(asks, 4)).in_time < bound(plenty, faster(asks, 4)).in_time


def test_capacity_is_where_it_is_nearly_all() -> None:
    asks, plan = (
        conversations(300, 3.4, Random(2)),
        WorldPlan(prefills=2, decodes=2, targets=TARGETS),
    )

    speed = capacity(plan, asks)

    below, above = (bound(plan, faster(asks, speed * factor)) for factor in (1.0, 1.03))
    assert below.in_time >= SERVED * below.possible
    assert above.in_time < SERVED * above.possible
    assert bound(plan, faster(asks, 100 * speed)).in_time < above.in_time
