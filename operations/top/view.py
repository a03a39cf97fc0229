"""View: a picture of the gateway as text, for so many columns and lines.

    head       what it does, in numbers
    engines    a line each, prefill first
    lines      TTFT, ITL and calls over the last minutes
    calls      those that run, then those that ended last, as many as fit

Names come from outside, so they are Text, never markup.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from pdgate.operations.top.pairs import pairs
from pdgate.operations.top.strokes import UNKNOWN, bar, count, line, milliseconds, seconds, squeezed

MINUTES_SLOTS: Final = 150
ALWAYS_LINES: Final = 9
"""All but engines, hints and calls."""
MOST_HINTS: Final = 4
WIDE: Final = 96
"""Columns from which on there is room for everything."""
VERY_WIDE: Final = 124
"""And for pairs beside the engines."""
NARROW: Final = 60
LABEL_WIDTH: Final = 34
SIDES: Final = {"prefill": 0, "both": 1, "decode": 2, "plain": 3}
COLOURS: Final = {"prefill": "yellow", "both": "cyan", "decode": "blue", "plain": "white"}
STATES: Final = {
    "up": "green", "slow_start": "yellow", "trial": "yellow", "drained": "yellow",
    "asleep": "yellow",
    "silent": "red", "down": "red", "ejected": "red",
}  # fmt: skip
PHASES: Final = {
    "waiting": ("waits", "white"),
    "prefill": ("reading", "yellow"),
    "crossing": ("KV crosses", "magenta"),
    "answering": ("answers", "blue"),
}


class TopView:
    """
    Attributes:
        picture: The last one; None before the first.
        away: Why there is none now, and since when (Unix seconds); None while there is.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self.picture: Mapping[str, Any] | None = None
        self.away: tuple[str, float] | None = None
        self.now = 0.0

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = options.max_width
        room = (options.height or console.height) - ALWAYS_LINES
        yield self._status(width)
        if self.picture is None:
            return
        engines = sorted(
            self.picture["instances"], key=lambda one: (SIDES.get(one["role"], 9), one["id"])
        )
        # Where they are many, calls have a third of the room all the same.
        most = max(1, room * 2 // 3 - 1)
        if len(engines) > most:
            # Those that are not well are not to be among those for which there is no room.
            engines.sort(key=lambda one: one["state"] == "up" and not _hint(one))
        shown = engines[:most]
        hints = [*_hints(engines)][: max(0, min(MOST_HINTS, room // 6))]
        if len(shown) < len(engines):
            hints.append(Text(f"  and {len(engines) - len(shown)} more engines", style="dim"))
        yield Text()
        yield self._engines_and_pairs(shown, width)
        yield from hints
        yield Text()
        yield from _lines(self.picture, width)
        left = room - len(shown) - len(hints) - 2
        if left > 0:
            yield Text()
            yield _calls(self.picture, width, left)

    def _engines_and_pairs(
        self, engines: Sequence[Mapping[str, Any]], width: int
    ) -> RenderableType:
        table = _engines(engines, width)
        if self.picture is None or width < VERY_WIDE:
            return table
        beside = pairs(self.picture["calls"]["running"], len(engines))
        if beside is None:
            return table
        both = Table.grid(padding=(0, 2, 0, 0))
        both.add_row(table, beside)
        return both

    def _status(self, width: int) -> RenderableType:
        where = _one_line(("pdgate ", "bold"), (self._url, "dim"))
        if self.away is not None:
            why, since = self.away
            ago = seconds(self.now - since)
            words = f" away for {ago} "
            said = _one_line((words, "bold white on red"), " ", (f"{why}; trying again", "red"))
            old = "" if self.picture is None else "what follows is how it was"
            return Group(where, said, Text(old, style="dim"))
        if self.picture is None:
            return Group(where, Text("connecting", style="dim"))
        return Group(where, _state(self.picture), _numbers(self.picture, width))


def _state(picture: Mapping[str, Any]) -> Text:
    if picture["draining"]:
        return Text("draining: no new calls", style="bold yellow")
    if not picture["ready"]:
        lacks = "; ".join(f"{one['role']}: {one['why']}" for one in picture["missing"])
        return _one_line((f"not ready{', ' if lacks else ''}{lacks}", "bold red"))
    found = _one_line(("serving", "bold green"))
    told, silent = picture["workers"]["told"], picture["workers"]["silent"]
    if told + silent > 1:
        found.append(f"  {told} workers", style="dim")
    if silent:
        found.append(f", {silent} silent", style="yellow")
    # A gateway of an earlier version tells nothing of its jobs.
    if failed := picture.get("failed_jobs"):
        found.append(f"  without {', '.join(failed)}", style="yellow")
    return found


def _numbers(picture: Mapping[str, Any], width: int) -> Text:
    kv = picture["kv"]
    stranded, ever = sum(kv["stranded"].values()), sum(kv["strandings"].values())
    by_phase = dict.fromkeys(PHASES, 0)
    for call in picture["calls"]["running"]:
        by_phase[call["phase"]] = by_phase.get(call["phase"], 0) + 1
    found = _one_line((count(picture["in_flight"]), "bold"), " calls in flight")
    parts = [
        Text.assemble((str(number), f"bold {PHASES[phase][1]}"), f" {PHASES[phase][0]}")
        for phase, number in by_phase.items()
        if number
    ]
    if parts and width >= WIDE:
        found.append(" (").append(Text(", ").join(parts)).append(")")
    found.append("   KV held ").append(count(kv["held"]), style="bold")
    found.append("   stranded ").append(
        count(stranded), style="bold yellow" if stranded else "bold"
    )
    if ever:
        found.append(f" ({count(ever)} ever)", style="dim")
    return found


def _one_line(*parts: str | tuple[str, str]) -> Text:
    """What is too long for the terminal is cut."""
    return Text.assemble(*parts, no_wrap=True, overflow="ellipsis")


def _engines(engines: Iterable[Mapping[str, Any]], width: int) -> Table:
    gap = 2 if width >= NARROW else 1
    table = Table(box=None, padding=(0, gap, 0, 0), expand=False, header_style="dim")
    # Where there is too little room, names are cut and not numbers: a column that may wrap gives way first.
    table.add_column("engine", max_width=max(10, width // 3))
    table.add_column("role", no_wrap=True)
    table.add_column("state", no_wrap=True)
    numbers = 4 if width >= WIDE else 2 if width >= NARROW else 1
    for name in ("calls", "to read", "waits", "step")[:numbers]:
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("KV", no_wrap=True)
    cells = 20 if width >= WIDE else 8 if width >= NARROW else 3
    for one in engines:
        load = one["load"] or {}
        colour = COLOURS.get(one["role"], "white")
        sides = one["sides"]
        side = f"{one['role']}:{sides[0]}" if sides and len(sides) == 1 else one["role"]
        row: list[RenderableType] = [
            Text(one["id"], f"bold {colour}", no_wrap=True, overflow="ellipsis"),
            Text(side, style=colour),
            Text(one["state"].replace("_", " "), style=STATES.get(one["state"], "white")),
        ]
        waits, step = load.get("waiting"), load.get("step_seconds")
        figures = (
            count(one["calls"]),
            count(one["queued_tokens"]),
            UNKNOWN if waits is None else count(waits),
            milliseconds(step * 1000 if step else None),
        )
        row += map(Text, figures[:numbers])
        table.add_row(*row, _kv(load.get("kv_free"), cells, colour))
    return table


def _kv(free: float | None, cells: int, colour: str) -> Text:
    if free is None:
        return Text("?", style="dim")
    used = 1 - free
    filled = Text(bar(used, cells), style="red" if used > 0.9 else colour)
    filled.stylize("on grey19")
    return filled.append(f" {used:4.0%}", style="not dim")


def _hint(one: Mapping[str, Any]) -> str:
    prompts = "prompt" if one["stranded"] == 1 else "prompts"
    stranded = f"KV of {one['stranded']} {prompts} stranded" if one["stranded"] else ""
    return "; ".join(filter(None, (stranded, one["hint"])))


def _hints(engines: Iterable[Mapping[str, Any]]) -> Iterable[Text]:
    for one in engines:
        if hint := _hint(one):
            yield Text(f"  {one['id']}: {hint}", style="yellow", no_wrap=True, overflow="ellipsis")


def _lines(picture: Mapping[str, Any], width: int) -> Iterable[Text]:
    points, slot_seconds = picture["chart"]["points"], picture["chart"]["slot_seconds"]
    now = int(picture["at"])

    def drawn(name: str, values: Mapping[int, float], words: str, colour: str) -> Text:
        line_width = max(10, width - LABEL_WIDTH)
        over_time = squeezed(values, now, slot_seconds, MINUTES_SLOTS, line_width)
        known = [value for value in over_time if value is not None]
        drawn = line(over_time, max(known, default=0.0))
        return Text.assemble((f"{name:6}", "bold"), f"{words:26}", (drawn, colour), no_wrap=True)

    for name, key, colour in (("TTFT", "ttft_ms", "yellow"), ("ITL", "itl_ms", "blue")):
        values = {point["at"]: point[key][1] for point in points if point[key]}
        p50, p95, _ = next(
            (point[key] for point in reversed(points) if point[key]), (None, None, None)
        )
        words = f"p50 {milliseconds(p50)}, p95 {milliseconds(p95)}"
        yield drawn(name, values, words, colour)
    rates = {point["at"]: point["ok"] + point["failed"] + point["gone"] for point in points}
    failed = sum(point["failed"] for point in points) * slot_seconds
    latest = [rate for at, rate in rates.items() if now - at <= 12]
    rate = sum(latest) * slot_seconds / 10
    words = f"{rate:.1f} per second" + (f", {failed:.0f} bad" if failed else "")
    yield drawn("calls", rates, words, "green")


def _calls(picture: Mapping[str, Any], width: int, rows: int) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    wide = width >= WIDE
    table.add_column("call", no_wrap=True, overflow="ellipsis", max_width=26 if wide else 14)
    table.add_column("age", justify="right", no_wrap=True)
    table.add_column("way", no_wrap=True, overflow="ellipsis", max_width=40 if wide else 20)
    if wide:
        table.add_column("how", no_wrap=True)
        table.add_column("first byte", justify="right", no_wrap=True)
        table.add_column("total", justify="right", no_wrap=True)
    table.add_column("result", no_wrap=True)
    running, ended = picture["calls"]["running"], picture["calls"]["ended"]
    for call in [*running[: max(1, rows // 2)], *ended][: max(0, rows)]:
        way = Text(call["prefill"], style="yellow")
        if call["prefill"] and call["decode"]:
            way.append(" → ", style="magenta")
        way.append(call["decode"], style="blue")
        age = seconds(picture["at"] - (call["ended"] or call["started"]))
        row = [Text(call["id"]), Text(age, style="dim"), way]
        if wide:
            total = None if call["ended"] is None else 1000 * (call["ended"] - call["started"])
            row.append(Text(call["path"].replace("_", " "), style="dim"))
            row.append(Text(milliseconds(call["first_byte_ms"])))
            row.append(Text(milliseconds(total) if total is not None else ""))
        table.add_row(*row, _result(call))
    return table


def _result(call: Mapping[str, Any]) -> Text:
    if call["phase"] in PHASES:
        words, colour = PHASES[call["phase"]]
        return Text(words, style=colour)
    colour = {"ok": "green", "client_gone": "white"}.get(call["outcome"], "red")
    return Text(call["outcome"].replace("_", " "), style=colour)
