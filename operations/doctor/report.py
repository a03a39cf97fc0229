"""Findings as tables for people, or as JSON for programs."""

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape as markup_free
from rich.table import Table

from pdgate.cluster.printable import printable
from pdgate.operations.doctor.checks import CHECKS, CheckWay, Finding, Grade
from pdgate.operations.doctor.examining import NO_PROBES
from pdgate.operations.doctor.seen import Examined, SeenEngine

LEAST_WIDTH = 120
SHOWN_ID = 16
"""Characters of an engine id; JSON has all of it."""
COLOURS = {Grade.WRONG: "red", Grade.BEWARE: "yellow"}


def not_checked(examined: Examined) -> dict[str, str]:
    """Check -> why nothing is known of it."""
    if not examined.probes.made:
        return {check.id: NO_PROBES for check in CHECKS if check.way is CheckWay.PROBE}
    return dict(examined.probes.not_checked)


def as_json(examined: Examined, findings: Sequence[Finding]) -> dict[str, Any]:
    return {
        "engines": [_engine(examined, seen) for seen in examined.fleet],
        "findings": [finding.as_json() for finding in findings],
        "not_checked": not_checked(examined),
    }


def show(console: Console, examined: Examined, findings: Sequence[Finding]) -> None:
    console.width = max(console.width, LEAST_WIDTH)
    if examined.fleet:
        console.print(_engines(examined))
    if findings:
        console.print(_findings(findings))
    skipped: dict[str, list[str]] = {}
    for check, why in not_checked(examined).items():
        skipped.setdefault(why, []).append(check)
    for why, checks in skipped.items():
        console.print(
            printable(f"not checked: {', '.join(checks)}; {why}"), style="dim", markup=False
        )
    wrong = sum(finding.check.grade is Grade.WRONG for finding in findings)
    if not findings:
        count = len(examined.fleet) + len(examined.starts)
        console.print(f"nothing wrong was found with {count} engines", style="green")
    else:
        console.print(f"{wrong} wrong, {len(findings) - wrong} to beware of", style="bold")


def _engines(examined: Examined) -> Table:
    table = Table(title="engines")
    for name in ("id", "role", "URL", "engine", "models", "block", "KV is fetched at", "engine id"):
        table.add_column(name, overflow="fold", no_wrap=name in ("id", "URL"))
    for seen in examined.fleet:
        told = _engine(examined, seen)
        table.add_row(
            *(
                _plain(text)
                for text in (
                    seen.id,
                    seen.instance.role.value,
                    seen.instance.url,
                    f"{seen.kind} {seen.version}".strip() or "?",
                    ", ".join(told["models"]) or "-",
                    str(seen.block_tokens or "?"),
                    ", ".join(told["kv_at"]) or "-",
                    told["engine_id"][:SHOWN_ID] or "-",
                )
            )
        )
    return table


def _engine(examined: Examined, seen: SeenEngine) -> dict[str, Any]:
    kept = examined.probes.kept.get(seen.id)
    where = [kept.address] if kept is not None and kept.address is not None else []
    where += [] if seen.bootstrap is None else seen.bootstrap.workers
    return {
        "id": seen.id,
        "role": seen.instance.role.value,
        "url": seen.instance.url,
        "protocol": seen.instance.protocol,
        "kind": seen.kind,
        "version": seen.version,
        "models": sorted(seen.models),
        "block_tokens": seen.block_tokens,
        "prefix_caching": seen.prefix_caching,
        "kv_dtype": seen.kv_dtype,
        "clock_skew_seconds": seen.skew_seconds,
        "kv_at": [f"{host}:{port}" for host, port in where],
        "engine_id": examined.engine_id(seen),
    }


def _findings(findings: Sequence[Finding]) -> Table:
    table = Table(title="findings", show_lines=True)
    table.add_column("check", no_wrap=True)
    table.add_column("engines", overflow="fold")
    table.add_column("what, why it hurts, and the cure", ratio=1)
    for finding in findings:
        check = finding.check
        table.add_row(
            f"[{COLOURS[check.grade]}]{check.id}[/]",
            "\n".join(map(_plain, finding.instances)),
            f"{_plain(check.finds)}: [bold]{_plain(finding.found)}[/]\n"
            f"{_plain(check.why)}\n"
            f"[green]{_plain(check.cure)}[/]",
        )
    return table


def _plain(text: str) -> str:
    """Of engines: no markup, and nothing that a terminal obeys."""
    return markup_free(printable(text))
