"""Which protocols are installed here, and which package each came from."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from pdgate.forwarders import registry
from pdgate.protocols import plugins


@dataclass(frozen=True, slots=True)
class Installed:
    """One declared protocol.

    Attributes:
        modes: Mode -> "" if it can be done, else why not. Empty if `error` is not.
        error: Why it cannot be loaded.
    """

    name: str
    package: str
    version: str
    modes: Mapping[str, str] = field(default_factory=dict)
    error: str = ""

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "package": self.package,
            "version": self.version,
            "modes": {
                mode: {"possible": not why_not, "why_not": why_not or None}
                for mode, why_not in self.modes.items()
            },
            "error": self.error or None,
        }


def protocols() -> list[Installed]:
    """Every protocol, also one that cannot be loaded: its owner wants to see that here."""
    found = entry_points(group=plugins.FORWARDERS)
    return [_installed(point) for point in sorted(found, key=lambda point: point.name)]


def lines(found: Sequence[Installed]) -> list[str]:
    """A table, and below it the reasons for what cannot be done."""
    rows = [("PROTOCOL", "MODES", "PACKAGE"), *map(_row, found)]
    widths = [max(len(row[column]) for row in rows) for column in range(2)]
    table = [f"{name:{widths[0]}}  {modes:{widths[1]}}  {by}" for name, modes, by in rows]
    reasons = [
        f"{one.name} cannot do {mode} scheduling: {why_not}"
        for one in found
        for mode, why_not in one.modes.items()
        if why_not
    ]
    errors = [f"{one.name} cannot be loaded: {one.error}" for one in found if one.error]
    notes = reasons + errors
    return [*table, "", *notes] if notes else table


def _row(one: Installed) -> tuple[str, str, str]:
    possible = [mode for mode, why_not in one.modes.items() if not why_not]
    return one.name, ", ".join(possible) or "-", f"{one.package} {one.version}"


def _installed(point: EntryPoint) -> Installed:
    package, version = (point.dist.name, point.dist.version) if point.dist else ("?", "?")
    try:
        modes = {mode.value: why_not for mode, why_not in registry.modes(point.name).items()}
    except Exception as error:  # noqa: BLE001
        # Importing somebody else's package can raise anything, and this is where to see it.
        return Installed(point.name, package, version, error=f"{type(error).__name__}: {error}")
    return Installed(point.name, package, version, modes)
