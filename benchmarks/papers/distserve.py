"""DistServe's goodput: the rate of calls for each GPU at which 90 % have their first token, and the others, in time.

The paper has it of OPT models on A100s with 80 GB, against vLLM as it was then, with its targets and its placements. Here
engines are simulated ones that take as long as the authors measured theirs to take: a line through what a step reads and
answers, for their engine and for their vLLM. What decode has in two stages of a pipeline is two engines with half of its
KV, as two batches are in it that take turns.

    a prefill step    fixed + tokens * per token + sum of squared lengths * per square
    a decode step     fixed + tokens of context * per token + calls * per call

Prompts and answers are drawn to the data sets' mean lengths, the data sets are not here. A first token is prefill's, as
there, and as here with `--early-first-token`.

Source: LLMServe/DistServe at GitHub, evaluation/2-benchmark-serving (targets, GPUs, placements and their results in
plot.ipynb) and simdistserve/estimators/profile_data (steps; KV that fits in). Mean lengths: Zhong et al., DistServe
(OSDI 2024), figure 7, by a description of it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import exp
from random import Random
from typing import Final

from pdgate.lab.simulator.hardware import Hardware
from pdgate.lab.simulator.outcome import SimulatedOutcome
from pdgate.lab.simulator.trace import TraceCall, faster
from pdgate.lab.simulator.world import WorldPlan, run
from pdgate.scheduling.admission import Limits
from pdgate.scheduling.disaggregation import Never
from pdgate.scheduling.policy import DEFAULT
from pdgate.scheduling.policy_context import Targets

IN_TIME: Final = 0.9
"""Of all calls."""

LONGEST_TOKENS: Final = 2048
"""Of a prompt and its answer, of OPT."""

CALLS: Final = 1200
HALVINGS: Final = 7


def _steps(
    prefill: tuple[float, float, float],
    decode: tuple[float, float, float],
    kv_tokens: int,
    kv_bytes_per_token: int,
    fixed: float,
) -> Hardware:
    """As the authors give them, in milliseconds: fixed, per token and per square; fixed, per token of context and per call.

    `fixed`: what counts of both.
    """
    _, per_token, per_square = prefill
    _, per_context_token, per_call = decode
    return Hardware(
        overhead_seconds=fixed / 1e3,
        weights_seconds=0.0,
        prompt_token_seconds=per_token / 1e3,
        call_seconds=per_call / 1e3,
        context_token_seconds=per_context_token / 1e3,
        # Each token looks at those before it: half of the square.
        pair_seconds=2 * per_square / 1e3,
        step_tokens=8192,
        calls=1024,
        kv_tokens=kv_tokens,
        kv_bytes_per_token=kv_bytes_per_token,
        # Of the NVLinks between the GPUs of a node.
        link_bytes_per_second=300e9,
        link_seconds=0.001,
    )


@dataclass(frozen=True, slots=True)
class Setting:
    """
    Attributes:
        prompt, answer: Tokens on average, and how far they spread: the deviation of their logarithm.
        prefill, decode, both: Engines; the last are theirs of vLLM.
        gpus: Of prefill and decode engines together.
        both_gpus: Of those that do both.
        reported: Times as many calls, by the paper's authors.
    """

    name: str
    targets: Targets
    prompt: tuple[float, float]
    answer: tuple[float, float]
    prefill: tuple[int, Hardware]
    decode: tuple[int, Hardware]
    gpus: int
    both: tuple[int, Hardware]
    both_gpus: int
    reported: float


_KV_13B, _KV_66B = 819_200, 2_359_296
"""Bytes of a token: 40 layers of 5,120 and 64 of 9,216 numbers for K and for V, of 16 bits."""

_P13 = (14.743, 0.068577, 2.4496e-6), (13.295, 3.4109e-4, 0.062964)
_D13 = (18.103, 0.10191, 7.1223e-6), (19.935, 6.2694e-4, 0.038507)
_V13 = (22.052, 0.14051, 8.0766e-6), (23.475, 5.9293e-4, 0.060727)
_P66 = (29.442, 0.15135, 8.3175e-6), (30.760, 4.5195e-4, 0.063284)
_D66 = (43.059, 0.27423, 2.2478e-5), (48.288, 9.4243e-4, 0.12755)
_V66 = (42.965, 0.21287, 4.6010e-5), (39.582, 6.9457e-4, 0.13581)
"""A prefill step and a decode step of their engine over two GPUs, and one; of vLLM over one; of their engine over four, and
two; of vLLM over four."""

_APART_13B: Final = (
    (4, _steps(*_P13, 163_008, _KV_13B, fixed=_P13[0][0])),
    (4, _steps(*_D13, 66_144, _KV_13B, fixed=_D13[1][0])),
    12,
    (12, _steps(*_V13, 66_144, _KV_13B, fixed=_V13[1][0])),
    12,
)
_APART_66B: Final = (
    (2, _steps(*_P66, 78_496, _KV_66B, fixed=_P66[0][0])),
    # Twice two stages of two GPUs.
    (4, _steps(*_D66, 78_512 // 2, _KV_66B, fixed=_D66[1][0])),
    16,
    (4, _steps(*_V66, 78_496, _KV_66B, fixed=_V66[1][0])),
    16,
)

SETTINGS: Final[Sequence[Setting]] = (
    # With a spread of 1.0 a tenth of the prompts takes vLLM longer than the target if it does nothing else.
    Setting("OPT-13B, ShareGPT", Targets(0.25, 0.1), (755, 0.6), (200, 0.8), *_APART_13B, 4.6),
    Setting("OPT-66B, ShareGPT", Targets(2.5, 0.15), (755, 0.6), (200, 0.8), *_APART_66B, 2.75),
    Setting("OPT-66B, HumanEval", Targets(0.125, 0.2), (171, 0.4), (98, 0.5), *_APART_66B, 5.72),
    Setting("OPT-66B, LongBench", Targets(15.0, 0.15), (1738, 0.15), (91, 0.6), *_APART_66B, 4.24),
)


def asks_of(setting: Setting, calls: int, random: Random) -> list[TraceCall]:
    """One a second on average, at random, none of which begins as another does."""
    asks: list[TraceCall] = []
    at = 0.0
    for _ in range(calls):
        at += random.expovariate(1.0)
        answer = min(_drawn(random, *setting.answer), LONGEST_TOKENS // 2)
        prompt = min(_drawn(random, *setting.prompt), LONGEST_TOKENS - answer)
        asks.append(TraceCall(at, prompt, answer, ()))
    return asks


def fleets(setting: Setting) -> Mapping[str, tuple[WorldPlan, int]]:
    """By what a table calls them: the plan, and its GPUs."""
    (prefills, reads), (decodes, answers) = setting.prefill, setting.decode
    both, does_both = setting.both
    waits = Limits.of({}, setting.targets, setting.targets)
    apart = WorldPlan(
        prefills=prefills,
        decodes=decodes,
        hardware=reads,
        decode_hardware=answers,
        targets=setting.targets,
    )
    together = replace(
        apart, prefills=0, decodes=0, both=both, hardware=does_both, rule=Never,
        prefill_policy="round_robin", decode_policy="round_robin",
    )  # fmt: skip
    return {
        f"apart, `{DEFAULT}`": (replace(apart, limits=waits), setting.gpus),
        f"apart, `{DEFAULT}`, at engines": (apart, setting.gpus),
        f"together, `{DEFAULT}`": (
            replace(together, prefill_policy=DEFAULT, decode_policy=DEFAULT, limits=waits),
            setting.both_gpus,
        ),
        "together, in turn": (together, setting.both_gpus),
    }


def goodput(plan: WorldPlan, gpus: int, asks: Sequence[TraceCall]) -> float:
    """Calls a second and GPU of which IN_TIME are, found by halving."""
    low, high = 0.0, 0.125
    while _share(plan, faster(asks, high * gpus)) >= IN_TIME:
        low, high = high, 2 * high
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        if _share(plan, faster(asks, middle * gpus)) >= IN_TIME:
            low = middle
        else:
            high = middle
    return low


def in_time(one: SimulatedOutcome, targets: Targets) -> bool:
    """Whether it was, by the token that prefill makes."""
    first = one.first if one.prefilled is None else one.prefilled
    if one.why or first is None or one.ended is None:
        return False
    others = max(1, one.ask.answer_tokens - 1)
    return (
        first - one.ask.at <= targets.ttft_seconds
        and (one.ended - first) / others <= targets.tpot_seconds
    )


def table(calls: int = CALLS, settings: Sequence[Setting] = SETTINGS) -> str:
    """As Markdown."""
    lines = [
        "| | targets, s | | calls a second and GPU | times the last |",
        "|---|--:|---|--:|--:|",
    ]
    for setting in settings:
        asks = asks_of(setting, calls, Random(1))
        found = {name: goodput(plan, gpus, asks) for name, (plan, gpus) in fleets(setting).items()}
        last = [*found.values()][-1]
        targets = f"{setting.targets.ttft_seconds:g}, {setting.targets.tpot_seconds:g}"
        for name, rate in found.items():
            times = f"{rate / last:.2f}" if last else "-"
            lines.append(f"| {setting.name} | {targets} | {name} | {rate:.2f} | {times} |")
        lines.append(
            f"| {setting.name} | {targets} | DistServe, by its authors | | {setting.reported:g} |"
        )
    return "\n".join(lines)


def _share(plan: WorldPlan, asks: Sequence[TraceCall]) -> float:
    outcomes = run(plan, asks).outcomes
    return sum(in_time(one, plan.targets) for one in outcomes) / len(outcomes)


def _drawn(random: Random, mean: float, spread: float) -> int:
    return max(2, round(mean * exp(-spread * spread / 2) * random.lognormvariate(0, spread)))
