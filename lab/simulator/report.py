"""Report of several runs: their figures, as a table for people and as JSON for programs."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

from rich import box
from rich.table import Table

from pdgate.lab.simulator.bound import SERVED, Bound
from pdgate.lab.simulator.comparing import Case
from pdgate.lab.simulator.summary import Summary

Cell = Callable[[Summary], str]


COLUMNS: Final[Mapping[str, Cell]] = {
    "goodput": lambda one: f"{one.goodput:.1%}",
    "hit rate": lambda one: f"{one.hit_rate:.1%}",
    "TTFT, s: p50 p90 p99": lambda one: one.ttft.in_seconds(),
    "TPOT, ms: p50 p90 p99": lambda one: one.tpot.in_milliseconds(),
    "busy: P D": lambda one: f"{one.prefill_busy:.0%} {one.decode_busy:.0%}",
    "imbalance: P D": lambda one: f"{one.prefill_imbalance:.2f} {one.decode_imbalance:.2f}",
    "lost": lambda one: str(sum(one.lost.values())),
}


def table(title: str, runs: Mapping[str, Summary]) -> Table:
    """A row for each name."""
    drawn = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    drawn.add_column("policy", no_wrap=True)
    for name in COLUMNS:
        drawn.add_column(name.replace(": ", "\n"), justify="right", no_wrap=True)
    for name, one in runs.items():
        drawn.add_row(name, *(cell(one) for cell in COLUMNS.values()))
        for urgency, part in one.by_urgency.items():
            times = part.ttft.in_seconds(), part.tpot.in_milliseconds()
            drawn.add_row(f"  priority {urgency}", f"{part.goodput:.1%}", "", *times, "", "", "")
    return drawn


def markdown(runs: Mapping[str, Summary]) -> str:
    lines = [f"| policy | {' | '.join(COLUMNS)} |", f"|---|{'---|' * len(COLUMNS)}"]
    for name, one in runs.items():
        lines.append(f"| {name} | {' | '.join(cell(one) for cell in COLUMNS.values())} |")
    return "\n".join(lines)


def as_json(
    cases: Sequence[Case], figures: Sequence[Summary], limits: Mapping[float, Bound]
) -> list[Mapping[str, Any]]:
    """`limits`: scale -> the bound there, of scales for which it was asked."""
    return [
        {"policy": case.policy, "scale": case.scale, **asdict(one)}
        | ({"bound": asdict(limits[case.scale])} if case.scale in limits else {})
        for case, one in zip(cases, figures, strict=True)
    ]


def of_bound(one: Bound) -> str:
    return (
        f"bound: {one.goodput:.1%} in time at most with any policy; {one.goodput_lru:.1%} if caches"
        + f" give up what was longest unused; {one.possible / one.calls:.1%} are short enough at all"
    )


def of_capacity(speed: float) -> str:
    if not speed:
        return "capacity: none, as no speed is slow enough"
    return f"capacity: scale {speed:.3g}, where the bound is {SERVED:.0%} of the calls that are short enough"
