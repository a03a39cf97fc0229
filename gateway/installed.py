"""Installed protocols, and which package each came from."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint
from typing import Any

from pdgate.forwarders import registry
from pdgate.protocols import plugins


@dataclass(frozen=True, slots=True)
class Installed:
    """One declared protocol.

    Attributes:
        modes: Mode -> "" if it can be done, else why not. Empty if `error` is not.
        generations: Generation -> its modes, for a protocol that tells some apart.
        error: Why it cannot be loaded.
    """

    name: str
    package: str
    version: str
    modes: Mapping[str, str] = field(default_factory=dict)
    generations: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    error: str = ""

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "package": self.package,
            "version": self.version,
            "modes": _modes_as_json(self.modes),
            "generations": {
                name: _modes_as_json(modes) for name, modes in self.generations.items()
            },
            "error": self.error or None,
        }


def protocols() -> list[Installed]:
    """Every protocol, also one that cannot be loaded: its owner wants to see that here."""
    found = plugins.entry_points(group=plugins.FORWARDERS)
    return [_installed(point) for point in sorted(found, key=lambda point: point.name)]


def lines(found: Sequence[Installed]) -> list[str]:
    """A table, and below it the reasons for what cannot be done."""
    rows = [("PROTOCOL", "MODES", "PACKAGE"), *(row for one in found for row in _rows(one))]
    widths = [max(len(row[column]) for row in rows) for column in range(2)]
    table = [f"{name:{widths[0]}}  {modes:{widths[1]}}  {by}" for name, modes, by in rows]
    reasons = [
        f"{name} cannot do {mode} scheduling: {why_not}"
        for one in found
        for name, modes in _told_apart(one).items()
        for mode, why_not in modes.items()
        if why_not
    ]
    errors = [f"{one.name} cannot be loaded: {one.error}" for one in found if one.error]
    notes = reasons + errors
    return [*table, "", *notes] if notes else table


def _rows(one: Installed) -> list[tuple[str, str, str]]:
    by = f"{one.package} {one.version}"
    return [(name, _possible(modes), by) for name, modes in _told_apart(one).items()]


def _told_apart(one: Installed) -> Mapping[str, Mapping[str, str]]:
    """The protocol, or each of its generations if they differ in what they can do."""
    if all(modes == one.modes for modes in one.generations.values()):
        return {one.name: one.modes}
    return {f"{one.name} {name}": modes for name, modes in one.generations.items()}


def _possible(modes: Mapping[str, str]) -> str:
    return ", ".join(mode for mode, why_not in modes.items() if not why_not) or "-"


def _modes_as_json(modes: Mapping[str, str]) -> dict[str, Any]:
    return {
        mode: {"possible": not why_not, "why_not": why_not or None}
        for mode, why_not in modes.items()
    }


def _installed(point: EntryPoint) -> Installed:
    package, version = (point.dist.name, point.dist.version) if point.dist else ("?", "?")
    try:
        modes = _modes(point.name)
        generations = {name: _modes(point.name, name) for name in registry.generations(point.name)}
    except Exception as error:  # noqa: BLE001
        # Importing another's package can raise anything, and this is where to see it.
        return Installed(point.name, package, version, error=f"{type(error).__name__}: {error}")
    return Installed(point.name, package, version, modes, generations)


def _modes(protocol: str, generation: str = "") -> dict[str, str]:
    return {mode.value: why for mode, why in registry.modes(protocol, generation).items()}
