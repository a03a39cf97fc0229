"""Finds transfer backends by name, ours and third-party ones alike.

A package adds one with an entry point, and nothing is imported until it is used:

    [project.entry-points."pdgate.transfers"]
    acme = "pdgate_acme:AcmeBackend"
"""

from importlib.metadata import entry_points
from typing import Any

from pdgate.transfer.base import Backend

GROUP = "pdgate.transfers"


def names() -> list[str]:
    return sorted(entry_points(group=GROUP).names)


def load(name: str, **options: Any) -> Backend:
    """`options` are the backend's own. Raises LookupError, TypeError."""
    found = list(entry_points(group=GROUP, name=name))
    match found:
        case [one]:
            backend = one.load()(**options)
        case []:
            raise LookupError(
                f"no transfer backend is called {name!r}; there are {', '.join(names())}"
            )
        case _:
            packages = ", ".join(str(e.dist and e.dist.name) for e in found)
            raise LookupError(
                f"transfer backend {name!r} is declared by several packages: {packages}"
            )
    if not isinstance(backend, Backend):
        raise TypeError(f"{one.value} is not a Backend")
    return backend
