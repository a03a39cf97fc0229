"""The figures as a table in Markdown, and all that was seen as JSON."""

import json
import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import isnan
from typing import Any

from benchmarks.gateway.figures import Cell, Row
from benchmarks.gateway.fleet import Cores
from benchmarks.gateway.rounds import Results
from benchmarks.gateway.targets import TARGETS, YARDSTICK


@dataclass(frozen=True, slots=True)
class Run:
    """
    Attributes:
        results: What was seen.
        rows: What is made of it.
        missing: Why a gateway was not measured, by name.
        load: What else the machine did, before and after: processes that wanted a core, over a
            minute.
    """

    results: Results
    rows: Sequence[Row]
    missing: Mapping[str, str]
    rounds: int
    cores: Cores
    load: tuple[float, float]


def machine() -> str:
    cores = len(os.sched_getaffinity(0))
    return (
        f"{cores} cores ({platform.machine()}), Linux {platform.release()}, "
        f"Python {platform.python_version()}, loopback"
    )


def markdown(run: Run) -> str:
    return "\n".join([*_head(run), "", *_table(run), "", *_remarks(run)])


def as_json(run: Run) -> str:
    return json.dumps(_json({"machine": machine(), **asdict(run)}), indent=1, allow_nan=False)


def _json(value: Any) -> Any:
    """JSON has no word for what was not timed but null."""
    match value:
        case dict():
            return {name: _json(one) for name, one in value.items()}
        case list() | tuple():
            return [_json(one) for one in value]
        case float() if isnan(value):
            return None
    return value


def _head(run: Run) -> Iterator[str]:
    before, after = run.load
    yield (
        f"{machine()}; {_cores(run.cores)}; "
        f"medians of {run.rounds} rounds; load average {before:.1f} before, {after:.1f} after."
    )
    yield (
        f"In parentheses: the median of the ratios to {YARDSTICK} within rounds. Less is better. "
        "A single run does not tell differences under 15 %."
    )


def _cores(cores: Cores) -> str:
    pinned = "not pinned" if cores.gateways is None else "gateways on a core of their own"
    return f"{pinned}, before all other programs" if cores.first else pinned


def _table(run: Run) -> Iterator[str]:
    names = [name for name in TARGETS if any(name in row.cells for row in run.rows)]
    yield f"| | {' | '.join(names)} |"
    yield f"|---|{'---|' * len(names)}"
    for row in run.rows:
        cells = " | ".join(_cell(row.cells.get(name), row.unit) for name in names)
        yield f"| {row.title}, {row.unit} | {cells} |"


def _cell(cell: Cell | None, unit: str) -> str:
    if cell is None:
        return "-"
    if cell.value is None:
        return "wrong"
    digits = 1 if cell.value < 100 or unit == "MB" else 0
    ratio = "" if cell.ratio is None else f" ({cell.ratio:.2f})"
    return f"{cell.value:.{digits}f}{ratio}"


def _remarks(run: Run) -> Iterator[str]:
    """Who is what, who is missing, and every answer that was wrong."""
    for name in TARGETS:
        if any(name in row.cells for row in run.rows):
            hops = "prefill and decode" if TARGETS[name].hops == 2 else "one hop, to decode"
            yield f"- {name}: {TARGETS[name].what}; {hops}"
    for name, why in run.missing.items():
        yield f"- {name} was not measured: {why.splitlines()[0]}"
    for scenario, gateways in run.results.items():
        for name, seen in gateways.items():
            if seen.wrong is not None:
                yield f"- {name} has no figure in {scenario}: {seen.wrong}"
            if any(not one.peak_is_new for outcomes in seen.rounds for one in outcomes):
                yield f"- memory of {name} in {scenario} is the highest since it started"
