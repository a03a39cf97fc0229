"""Reload: another configuration for a gateway that runs; all of it, or nothing.

    read --> what differs? --> every part prepares (may say no) --> every part changes (cannot fail)
      '-- ConfigError -------------'------------'--> nothing has changed, and the caller says why

What takes a new value is declared with the setting (config/setting.py); a key whose setting says
that nothing does cannot be changed while the gateway runs, and is named.
"""

import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from pydantic import BaseModel

from pdgate.gateway.config.complaints import ConfigError
from pdgate.gateway.config.setting import OnReload, declared
from pdgate.gateway.config.settings import Settings

log = logging.getLogger(__name__)

RULES: Final = {one.key: one.on_reload for one in declared(Settings)}
"""Key -> what takes a new value."""

Change = Callable[[], None]
Prepare = Callable[[Settings], Change]
"""Raises ConfigError if it cannot be; what it returns does it, and does not fail."""


def changed_keys(before: BaseModel, after: BaseModel, prefix: str = "") -> Iterator[str]:
    """Dotted keys whose values differ; a list is one value."""
    for name in type(before).model_fields:
        old, new = getattr(before, name), getattr(after, name)
        if isinstance(old, BaseModel) and isinstance(new, BaseModel):
            yield from changed_keys(old, new, f"{prefix}{name}.")
        elif old != new:
            yield f"{prefix}{name}"


class Reload:
    """
    Attributes:
        settings: What is in force.
        results: "taken" or "refused" -> how often.
        request: What POST /admin/reload and SIGHUP do: in a gateway of several processes the parent is
            asked, so that all of them change or none. Raises ConfigError.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.source: Callable[[], Settings] = lambda: settings
        self.request: Callable[[], Awaitable[list[str]]] = self._alone
        self.results: Counter[str] = Counter()
        self._parts: dict[OnReload, Prepare] = {}
        self._always: list[Prepare] = []

    def part(self, rule: OnReload, prepare: Prepare) -> None:
        """What to do if a setting of this rule differs."""
        self._parts[rule] = prepare

    def always(self, prepare: Prepare) -> None:
        """What to do each time: files that the settings name may hold something else now."""
        self._always.append(prepare)

    @property
    def rules(self) -> frozenset[OnReload]:
        """Those that something is done for."""
        return frozenset(self._parts)

    def take(self, wanted: Settings) -> list[str]:
        """Puts it in force; returns the keys that differ. Raises ConfigError."""
        return self.put_in_force(self.prepare(wanted))

    def prepare(self, wanted: Settings) -> "Prepared":
        """Changes nothing yet. Raises ConfigError."""
        keys = list(changed_keys(self.settings, wanted))
        refuse_fixed(keys)
        parts = dict.fromkeys(self._parts[RULES[key]] for key in keys)
        changes = [prepare(wanted) for prepare in dict.fromkeys((*parts, *self._always))]
        return Prepared(wanted, keys, changes)

    def put_in_force(self, prepared: "Prepared") -> list[str]:
        """Returns the keys that differ."""
        for change in prepared.changes:
            change()
        self.settings = prepared.wanted
        self.results["taken"] += 1
        if prepared.keys:
            log.info("the configuration has changed: %s", ", ".join(prepared.keys))
        return prepared.keys

    def refused(self, why: str) -> None:
        self.results["refused"] += 1
        log.error("the configuration stays as it was: %s", why)

    def again(self) -> list[str]:
        """Reads where the configuration came from, and takes it. Raises ConfigError."""
        try:
            return self.take(self.source())
        except ConfigError as error:
            self.refused(str(error))
            raise

    async def _alone(self) -> list[str]:
        return self.again()


@dataclass(frozen=True, slots=True)
class Prepared:
    """A configuration that every part can take."""

    wanted: Settings
    keys: list[str]
    changes: list[Change]


def refuse_fixed(keys: Iterable[str]) -> None:
    """Raises ConfigError if there are any that cannot be changed."""
    if named := ", ".join(repr(key) for key in keys if RULES[key] is OnReload.RESTART):
        raise ConfigError(f"{named}: this needs a restart, so nothing was changed")
