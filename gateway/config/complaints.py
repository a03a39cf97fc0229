"""Complaints about a configuration: sentences made of what pydantic found.

Every sentence names the key as one would write it in TOML ("listen.port",
"instances[0].url") and, for a key that does not exist, the nearest one that does.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from pydantic import BaseModel, ValidationError

Location = Sequence[int | str]


class ConfigError(Exception):
    """The configuration is wrong; the message says where, one sentence a line."""


def complaints(error: ValidationError, tree: type[BaseModel]) -> str:
    return "\n".join(_sentence(found, tree) for found in error.errors(include_url=False))


def known_keys(tree: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """Every key below `tree`, dotted; the entries of a list share the key of the list."""
    for name, field in tree.model_fields.items():
        key = f"{prefix}{name}"
        yield key
        if section := _section(field.annotation):
            yield from known_keys(section, f"{key}.")


def dotted(location: Location) -> str:
    """("instances", 0, "url") -> instances[0].url"""
    parts = (f"[{part}]" if isinstance(part, int) else f".{part}" for part in location)
    return "".join(parts).removeprefix(".")


def _sentence(found: Any, tree: type[BaseModel]) -> str:
    location: Location = found["loc"]
    key = dotted(location)
    match found["type"]:
        case "extra_forbidden":
            return f"unknown key {key!r}{_nearest(location, tree)}"
        case "missing":
            return f"{key!r} is missing"
        case "value_error":
            # Written by our own validators, so it is a whole sentence already.
            said = str(found["ctx"]["error"])
            return f"{key!r}: {said}" if key else said
        case _:
            message = found["msg"].removeprefix("Input ")
            return f"{key!r} {message}, not {found['input']!r}"


def _nearest(location: Location, tree: type[BaseModel]) -> str:
    """Looks among the keys beside the wrong one first, then in the whole tree."""
    # A gateway that serves has nothing to complain of, and keeps what it has imported.
    from difflib import get_close_matches

    names = [part for part in location if isinstance(part, str)]
    above, wrong = location[:-1], names[-1]
    keys = list(known_keys(tree))
    parent = ".".join(names[:-1])
    siblings = [key.rpartition(".")[2] for key in keys if key.rpartition(".")[0] == parent]
    if near := get_close_matches(wrong, siblings, n=1):
        return f"; the nearest known one is {dotted([*above, near[0]])!r}"
    last_names = {key.rpartition(".")[2]: key for key in reversed(keys)}
    if near := get_close_matches(wrong, last_names, n=1):
        return f"; the nearest known one is {last_names[near[0]]!r}"
    return f"; known here are {', '.join(sorted(siblings))}"


def _section(annotation: Any) -> type[BaseModel] | None:
    """The model that a field holds, alone or as the entries of a tuple."""
    endpoints = (annotation, *getattr(annotation, "__args__", ()))
    for endpoint in endpoints:
        if isinstance(endpoint, type) and issubclass(endpoint, BaseModel):
            return endpoint
    return None
