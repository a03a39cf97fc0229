"""What was found, as a part of RESULTS.md."""

import re
from collections.abc import Mapping
from pathlib import Path

from benchmarks.policies.measure import AT_ENGINES, BOUNDED, BOUNDED_SECONDS
from benchmarks.policies.shapes import OfShape
from pdgate.lab.simulator.bound import Bound
from pdgate.lab.simulator.report import markdown
from pdgate.lab.simulator.summary import Summary
from pdgate.scheduling.policy_context import Targets

HEADING = "## Policies on the conversation trace"


Table = tuple[float, Bound, Mapping[str, Summary]]


def part(
    loads: Mapping[str, Table],
    targets: Targets,
    ours: str,
    per_second: float,
    asked: str,
    shapes: Mapping[str, OfShape],
) -> str:
    """
    Args:
        loads: What a load is called -> how much it is, what no policy can exceed there, and what came
            of it for each policy.
        per_second: Calls, at the trace's own pace.
        asked: The command's flags.
    """
    seconds, milliseconds = targets.ttft_seconds, 1000 * targets.tpot_seconds
    lines = [
        HEADING,
        "",
        f"`{f'python -m benchmarks.policies {asked}'.strip()}`",
        "",
        "Simulated: the gateway's own scheduler over 8 prefill and",
        "8 decode engines with the speed of an 8B model on a large GPU each",
        "([how](../docs/simulate.md)). Goodput is the share of calls whose first token came within",
        f"{seconds:g} s and whose others came within {milliseconds:g} ms on average. Ours is `{ours}`, the default for both roles, where these targets",
        "are set, so that calls wait in the gateway for them ([how](../docs/operations/admission-control.md#waiting-in-the-gateway));",
        f"`{BOUNDED}` has `admission.wait_seconds = {BOUNDED_SECONDS:g}` as well, so that who waits for longer is turned away (*lost*);",
        f"with `{AT_ENGINES}` (`admission.prefill_seconds = 0`) they wait at engines;",
        "the policies `cache_aware`, `dynamo` and `llm_d` model other routers",
        "([formulas and sources](peers/)), with our exact account and prefix index. All others turn",
        "nobody away, so in overload somebody waits: see TTFT p99.",
        f"{next(iter(next(iter(loads.values()))[2].values())).calls} calls of the trace.",
        "",
        "The bound is what no policy can exceed ([how](../docs/simulate.md#what-no-policy-can-exceed)); *LRU* is the same with one cache",
        "for all engines that gives up what was longest unused. Capacity is the highest load at which the bound is 99 % of",
        "the calls that are short enough to be in time.",
        "",
        "![Goodput over load](policies/goodput.svg)",
    ]
    for called, (load, limit, figures) in loads.items():
        of_ours, round_robin = figures[ours].goodput, figures["round_robin"].goodput
        best = max(one.goodput for name, one in figures.items() if not name.startswith(ours))
        lines += [
            "",
            f"### {called}: {load * per_second:.1f} calls a second",
            "",
            f"At most {limit.goodput:.1%} can be in time; LRU {limit.goodput_lru:.1%}.",
            f"Goodput of `{ours}` is {_times(of_ours, round_robin)} that of `round_robin`,",
            f"and {_times(of_ours, best)} the best other's.",
            "",
            markdown(dict(sorted(figures.items(), key=lambda one: -one[1].goodput))),
        ]
    calls = next(iter(next(iter(shapes.values())).found.values())).calls
    lines += [
        "",
        "### Made-up traces, each at its capacity",
        "",
        f"{calls} calls of each of [these](../lab/simulator/synthetic.py). Where decode is the bottleneck (`agents`, `chats`), the bound fills each",
        "step to the last microsecond of the target, knows how long answers will be, and lets the last ones end after all have come.",
        "",
        *_of_shapes(shapes),
    ]
    return "\n".join(lines) + "\n"


def _of_shapes(shapes: Mapping[str, OfShape]) -> list[str]:
    """What each is, says lab/simulator/synthetic.py."""
    lines = [
        "| trace | calls a second | bound | LRU | policy | goodput | of the bound | of LRU | TTFT, s: p50 p90 p99 |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name, one in shapes.items():
        limit = one.limit
        for policy, of in one.found.items():
            shares = f"{of.goodput / limit.goodput:.2f} | {of.goodput / limit.goodput_lru:.2f}"
            lines.append(
                f"| {name} | {one.per_second:.1f} | {limit.goodput:.1%} | {limit.goodput_lru:.1%} | {policy} "
                f"| {of.goodput:.1%} | {shares} | {of.ttft.in_seconds()} |"
            )
    return lines


def put(path: Path, text: str) -> None:
    """Where the part was, or at the end."""
    whole = path.read_text(encoding="utf-8")
    found = re.search(rf"^{re.escape(HEADING)}$.*?(?=^## |\Z)", whole, re.MULTILINE | re.DOTALL)
    if found is None:
        whole = whole.rstrip("\n") + "\n\n" + text
    else:
        rest = whole[found.end() :]
        whole = whole[: found.start()] + text + ("\n" + rest if rest else "")
    path.write_text(whole, encoding="utf-8")


def _times(one: float, other: float) -> str:
    return f"{one / other:.2f} times" if other else "more than"
