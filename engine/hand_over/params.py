"""Fields of a request's JSON, checked: every function raises ValueError for a bad one."""

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

Fields = Mapping[str, Any]


def flag(fields: Fields, name: str) -> bool:
    found = fields.get(name)
    if found is not None and not isinstance(found, bool):
        raise ValueError(f"{name} must be true or false")
    return bool(found)


def fields(fields: Fields, name: str) -> Fields:
    """Those of an object within."""
    found = fields.get(name)
    if isinstance(found, dict):
        return found
    raise ValueError(f"{name} must be an object")


def text(fields: Fields, name: str) -> str:
    found = fields.get(name)
    if not isinstance(found, str) or not found:
        raise ValueError(f"{name} must be a string")
    return found


def host(fields: Fields, name: str) -> str:
    """Host without the brackets of an IPv6 address."""
    return text(fields, name).removeprefix("[").removesuffix("]")


def integer(fields: Fields, name: str, least: int, most: int) -> int:
    found = fields.get(name)
    if not isinstance(found, int) or isinstance(found, bool) or not least <= found <= most:
        raise ValueError(f"{name} must be an integer from {least} to {most}")
    return found


def port(fields: Fields, name: str) -> int:
    return integer(fields, name, 1, 65535)


def endpoint(fields: Fields, name: str) -> tuple[str, int]:
    """Host and port of tcp://host:port."""
    try:
        parts = urlsplit(text(fields, name))
        if parts.scheme == "tcp" and parts.hostname and parts.port:
            return parts.hostname, parts.port
    except ValueError:
        pass
    raise ValueError(f"{name} must be tcp://host:port")


def block_ids(fields: Fields, name: str) -> tuple[int, ...]:
    """A list per KV cache group, of which there is one here."""
    groups = fields.get(name)
    if not isinstance(groups, list) or len(groups) != 1 or not isinstance(groups[0], list):
        raise ValueError(f"{name} must be a list with one list of block ids")
    ids = groups[0]
    if not ids or not all(isinstance(i, int) and not isinstance(i, bool) and i >= 0 for i in ids):
        raise ValueError(f"{name} must hold block ids")
    return tuple(ids)
