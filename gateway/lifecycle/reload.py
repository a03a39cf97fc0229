"""Another configuration for a gateway that runs: all of it, or nothing.

    read --> what differs? --> every part prepares (may say no) --> every part changes (cannot fail)
      '-- ConfigError -------------'------------'--> nothing has changed, and the caller says why

A key that no part takes cannot be changed while the gateway runs, and is named.
"""

import logging
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator

from pydantic import BaseModel

from pdgate.gateway.config.complaints import ConfigError
from pdgate.gateway.config.settings import Settings

log = logging.getLogger(__name__)

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
        pass_on: Called when this process has changed on request; for the gateway's others.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.source: Callable[[], Settings] = lambda: settings
        self.pass_on: Callable[[], None] = _nothing
        self.results: Counter[str] = Counter()
        self._parts: dict[str, Prepare] = {}
        self._always: list[Prepare] = []

    def part(self, keys: tuple[str, ...], prepare: Prepare) -> None:
        """What to do if one of the keys differs; a section stands for all that is in it."""
        self._parts.update(dict.fromkeys(keys, prepare))

    def always(self, prepare: Prepare) -> None:
        """What to do each time: files that the settings name may hold something else now."""
        self._always.append(prepare)

    @property
    def keys(self) -> frozenset[str]:
        """All that can be changed; sections stand for what is in them."""
        return frozenset(self._parts)

    def take(self, wanted: Settings) -> list[str]:
        """Puts it in force; returns the keys that differ. Raises ConfigError."""
        keys = list(changed_keys(self.settings, wanted))
        refuse_fixed(keys, self._parts)
        names = (part_of(key, self._parts) for key in keys)
        parts = dict.fromkeys(self._parts[name] for name in names if name is not None)
        changes = [prepare(wanted) for prepare in dict.fromkeys((*parts, *self._always))]
        for change in changes:
            change()
        self.settings = wanted
        if keys:
            log.info("the configuration has changed: %s", ", ".join(keys))
        return keys

    def again(self) -> list[str]:
        """Reads where the configuration came from, and takes it. Raises ConfigError."""
        try:
            keys = self.take(self.source())
        except ConfigError as error:
            self.results["refused"] += 1
            log.error("the configuration stays as it was: %s", error)
            raise
        self.results["taken"] += 1
        return keys


def part_of(key: str, changeable: Container[str]) -> str | None:
    """The key itself, or the section that stands for it; None if neither can be changed."""
    return next((one for one in (key, key.partition(".")[0]) if one in changeable), None)


def refuse_fixed(keys: Iterable[str], changeable: Container[str]) -> None:
    """Raises ConfigError if there are any that cannot be changed."""
    if named := ", ".join(repr(key) for key in keys if part_of(key, changeable) is None):
        raise ConfigError(f"{named}: this needs a restart, so nothing was changed")


def _nothing() -> None: ...
