"""Source of the configuration, so that it can be read again."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pdgate.gateway.config import Settings, load
from pdgate.gateway.config.api_keys import with_keys


@dataclass(frozen=True, slots=True)
class SettingsSource:
    """
    Attributes:
        path: The file, absolute; None if there is none.
        overrides: Dotted key -> value, from flags, over what the file says.
    """

    path: Path | None = None
    overrides: Mapping[str, Any] = field(default_factory=dict)

    def read(self) -> Settings:
        """Read the settings with the keys of the file that they name: what is in force must not change with that file
        before all workers have taken it. Raises ConfigError.
        """
        return with_keys(load(self.path, self.overrides))
