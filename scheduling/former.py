"""Former names of what plugins import: each works until 0.3, and says what it is called now."""

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any
from warnings import warn


def former(module: str, now: str, renamed: Mapping[str, str]) -> Callable[[str], Any]:
    """Return the `__getattr__` of a module whose names are those of `now`.

    `renamed`: former name -> today's, where they differ.
    """

    def found(name: str) -> Any:
        today = renamed.get(name, name)
        if name.startswith("_") or not hasattr(import_module(now), today):
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        warn(f"{module}.{name} is {now}.{today} now", DeprecationWarning, stacklevel=2)
        return getattr(import_module(now), today)

    return found
