"""What packages add to pdgate by entry point; nothing of them is imported until it is used.

plugins.find("pdgate.policies", "policy", "least_loaded").load()
"""

from importlib.metadata import EntryPoint, entry_points

DIRECTORIES = "pdgate.directories"
FORWARDERS = "pdgate.forwarders"
POLICIES = "pdgate.policies"
TRANSFERS = "pdgate.transfers"


def names(group: str) -> list[str]:
    return sorted(entry_points(group=group).names)


def find(group: str, kind: str, name: str) -> EntryPoint:
    """Raises LookupError for a name that nobody declares (naming those there are), or several."""
    found = list(entry_points(group=group, name=name))
    match found:
        case [one]:
            return one
        case []:
            raise LookupError(f"no {kind} is called {name!r}; there are {', '.join(names(group))}")
        case _:
            packages = ", ".join(str(e.dist and e.dist.name) for e in found)
            raise LookupError(f"{kind} {name!r} is declared by several packages: {packages}")
