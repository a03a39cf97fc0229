"""Report of a replay: a table and sentences for people, JSON for programs, a page to keep."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from html import escape
from pathlib import Path
from typing import Any, Final

import msgspec
from rich import box
from rich.table import Table

from pdgate.lab.replay.figures import Figures
from pdgate.lab.replay.outcome import ReplayOutcome
from pdgate.lab.simulator.pictures.chart import Axis, chart
from pdgate.lab.simulator.pictures.page import STYLE, distribution
from pdgate.lab.simulator.spread import some

COLUMNS: Final[Mapping[str, Callable[[Figures], str]]] = {
    "goodput": lambda one: f"{one.goodput:.1%}",
    "TTFT, s: p50 p90 p99": lambda one: one.ttft.in_seconds(),
    "TPOT, ms: p50 p90 p99": lambda one: one.tpot.in_milliseconds(),
    "ITL, ms: p50 p90 p99": lambda one: one.itl.in_milliseconds(),
    "whole, s: p50 p90 p99": lambda one: one.whole.in_seconds(),
    "lost": lambda one: str(sum(one.lost.values())),
    "driver late, ms: p50 p90 p99": lambda one: one.late.in_milliseconds(),
}


def table(title: str, one: Figures) -> Table:
    drawn = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    for name in COLUMNS:
        drawn.add_column(name.replace(": ", "\n"), justify="right", no_wrap=True)
    drawn.add_row(*(cell(one) for cell in COLUMNS.values()))
    return drawn


def sentences(one: Figures) -> list[str]:
    """What a table has no room for."""
    said = [f"lost: {count} x {why}" for why, count in one.lost.items()]
    if one.doubt:
        said.append(f"beware: {one.doubt}")
    return said


def as_json(one: Figures, told: Mapping[str, Any]) -> dict[str, Any]:
    return {**told, **asdict(one), "doubt": one.doubt or None}


def draw(
    folder: Path, outcomes: Sequence[ReplayOutcome], one: Figures, told: Mapping[str, Any]
) -> Path:
    """Writes figures.json, a line for each call, pictures, and the page. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    encode = msgspec.json.Encoder().encode
    (folder / "figures.json").write_bytes(encode(as_json(one, told)))
    (folder / "calls.jsonl").write_bytes(b"".join(encode(_line(o)) + b"\n" for o in outcomes))
    drawn = _pictures(outcomes)
    for name, svg in drawn.items():
        (folder / f"{name}.svg").write_text(svg, encoding="utf-8")
    path = folder / "index.html"
    path.write_text(_page(one, told, drawn), encoding="utf-8")
    return path


def _line(one: ReplayOutcome) -> dict[str, Any]:
    return {
        "at": one.ask.at,
        "sent": one.sent,
        "prompt_tokens": one.prompt_tokens,
        "answer_tokens": one.tokens,
        "ttft": one.ttft,
        "tpot": one.tpot,
        "whole": one.whole,
        "late": one.late,
        "why": one.why or None,
    }


def _pictures(outcomes: Sequence[ReplayOutcome]) -> dict[str, str]:
    drawn = {}
    for kind, unit, values in (
        ("TTFT", "s", some(one.ttft for one in outcomes)),
        ("TPOT", "ms", [1000 * t for t in some(one.tpot for one in outcomes)]),
    ):
        ordered = sorted(value for value in values if value > 0)
        if ordered:
            # Of times that are all alike an axis would have no length.
            low, high = ordered[0], max(ordered[-1], 1.1 * ordered[0])
            drawn[kind.lower()] = chart(
                f"{kind}, measured",
                Axis(f"{kind}, {unit}", low, high, logarithmic=True),
                Axis("calls that have it sooner, %", 0, 100),
                {"replay": distribution(ordered)},
            )
    return drawn


def _page(one: Figures, told: Mapping[str, Any], drawn: Mapping[str, str]) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in COLUMNS)
    row = "".join(f"<td>{escape(cell(one))}</td>" for cell in COLUMNS.values())
    facts = ", ".join(f"{name} {value}" for name, value in told.items())
    notes = "".join(f"<p>{escape(sentence)}</p>" for sentence in sentences(one))
    return (
        f"<!doctype html><meta charset='utf-8'><title>pdgate replay</title><style>{STYLE}</style>\n"
        f"<h1>Replayed</h1>\n<p>{escape(facts)}</p>\n<table><tr>{head}</tr>\n<tr>{row}</tr></table>\n"
        f"{notes}\n" + "\n".join(drawn.values())
    )
