"""What was found, as a part of RESULTS.md."""

import re
from collections.abc import Mapping
from pathlib import Path

from pdgate.lab.simulator.report import markdown
from pdgate.lab.simulator.summary import Summary
from pdgate.scheduling.policy_context import Targets

HEADING = "## Policies on the conversation trace"


def part(
    loads: Mapping[str, tuple[float, Mapping[str, Summary]]],
    targets: Targets,
    ours: str,
    per_second: float,
    asked: str,
) -> str:
    """
    Args:
        loads: What a load is called -> how much it is, and what came of it for each policy.
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
        f"{seconds:g} s and whose others came within {milliseconds:g} ms on average. Ours is `{ours}`, the default for both roles;",
        "the policies `cache_aware`, `dynamo` and `llm_d` model other routers",
        "([formulas and sources](peers/)), with our exact account and prefix index. Nobody turns",
        "calls away, so in overload somebody waits: see TTFT p99.",
        f"{next(iter(next(iter(loads.values()))[1].values())).calls} calls of the trace.",
        "",
        f"Capacity is about the load above which fewer than 90 % of calls are in time with `{ours}`.",
        "",
        "![Goodput over load](policies/goodput.svg)",
    ]
    for called, (load, figures) in loads.items():
        of_ours, round_robin = figures[ours].goodput, figures["round_robin"].goodput
        best = max(one.goodput for name, one in figures.items() if name != ours)
        lines += [
            "",
            f"### {called}: {load * per_second:.1f} calls a second",
            "",
            f"Goodput of `{ours}` is {_times(of_ours, round_robin)} that of `round_robin`,",
            f"and {_times(of_ours, best)} the best other's.",
            "",
            markdown(dict(sorted(figures.items(), key=lambda one: -one[1].goodput))),
        ]
    return "\n".join(lines) + "\n"


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
