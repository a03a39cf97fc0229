"""Plugins: what packages add to pdgate by entry point; nothing is imported until it is used.

plugins.find("pdgate.policies", "policy", "least_loaded").load()

To ask for entry points is to read a file of every package that is installed, tens of milliseconds
each time, and a gateway asks several times while it is built. So they are read once in a process;
again if the path of modules changes, or if a name is asked for that was not there: a package may
have been installed since.
"""

import sys
from functools import lru_cache
from importlib import metadata
from importlib.metadata import EntryPoint, EntryPoints

CONNECTORS = "pdgate.connectors"
DIRECTORIES = "pdgate.directories"
FORWARDERS = "pdgate.forwarders"
POLICIES = "pdgate.policies"
TRANSFERS = "pdgate.transfers"
GROUPS = (CONNECTORS, DIRECTORIES, FORWARDERS, POLICIES, TRANSFERS)


def entry_points(*, group: str, name: str | None = None) -> EntryPoints:
    """What `importlib.metadata.entry_points` says of our groups."""
    found = _declared(tuple(sys.path)).select(group=group)
    return found if name is None else found.select(name=name)


def names(group: str) -> list[str]:
    return sorted(entry_points(group=group).names)


def find(group: str, kind: str, name: str) -> EntryPoint:
    """Raises LookupError for a name that is not declared (naming those there are), or several."""
    found = list(entry_points(group=group, name=name))
    if not found:
        _declared.cache_clear()
        found = list(entry_points(group=group, name=name))
    match found:
        case [one]:
            return one
        case []:
            raise LookupError(f"no {kind} is called {name!r}; there are {', '.join(names(group))}")
        case _:
            packages = ", ".join(str(e.dist and e.dist.name) for e in found)
            raise LookupError(f"{kind} {name!r} is declared by several packages: {packages}")


@lru_cache(maxsize=1)
def _declared(_path: tuple[str, ...]) -> EntryPoints:
    everything = metadata.entry_points()
    return EntryPoints(one for group in GROUPS for one in everything.select(group=group))
