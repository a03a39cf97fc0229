"""Where the configuration came from, so that it can be read again, also by other processes."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from pdgate.gateway.config import Settings, load


@dataclass(frozen=True, slots=True)
class Source:
    """
    Attributes:
        path: The file, absolute; None if there is none.
        overrides: Dotted key -> value, from flags, over what the file says.
    """

    path: Path | None = None
    overrides: Mapping[str, Any] = field(default_factory=dict)

    def read(self) -> Settings:
        """Raises ConfigError."""
        return load(self.path, self.overrides)

    def as_json(self) -> str:
        return json.dumps([self.path and str(self.path), self.overrides])

    @classmethod
    def from_json(cls, text: str) -> Self:
        path, overrides = json.loads(text)
        return cls(Path(path) if path else None, overrides)
