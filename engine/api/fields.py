"""Fields of a request body: lenient about what is missing, null or unknown.

Every reader raises BadRequest for a value of the wrong kind, with the field as `param`.
"""

import json
import re
from collections.abc import Mapping
from typing import Any, Final

from pdgate.protocols.errors import BadRequest

Body = Mapping[str, Any]

_SURROGATE: Final = re.compile(rb"\\u[dD][89a-fA-F]")


def parse(data: bytes) -> Body:
    try:
        body = json.loads(data)
        if _SURROGATE.search(data):
            body = _sayable(body)
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"the request body is not valid JSON: {error}") from None
    if not isinstance(body, dict):
        raise BadRequest("the request body must be a JSON object")
    return body


def _sayable(found: Any) -> Any:
    """Half of a pair, which JSON can carry and UTF-8 cannot, becomes a question mark."""
    match found:
        case str():
            return found.encode(errors="replace").decode()
        case dict():
            return {_sayable(key): _sayable(value) for key, value in found.items()}
        case list():
            return [_sayable(item) for item in found]
    return found


def number(body: Body, name: str, default: float, low: float, high: float) -> float:
    found = body.get(name)
    if found is None:
        return default
    if isinstance(found, bool) or not isinstance(found, int | float) or not low <= found <= high:
        raise BadRequest(f"{name} must be a number in [{low}, {high}]", param=name)
    return float(found)


def integer(body: Body, name: str, low: int = 0) -> int | None:
    found = body.get(name)
    if found is None:
        return None
    if isinstance(found, bool) or not isinstance(found, int) or found < low:
        raise BadRequest(f"{name} must be an integer of at least {low}", param=name)
    return found


def flag(body: Body, name: str) -> bool:
    found = body.get(name)
    if found is not None and not isinstance(found, bool):
        raise BadRequest(f"{name} must be true or false", param=name)
    return bool(found)


def texts(body: Body, name: str) -> tuple[str, ...]:
    """One string or a list of strings."""
    found = body.get(name)
    if found is None:
        return ()
    if isinstance(found, str):
        return (found,)
    if not isinstance(found, list) or not all(isinstance(text, str) for text in found):
        raise BadRequest(f"{name} must be a string or a list of strings", param=name)
    return tuple(found)


def integers(body: Body, name: str) -> tuple[int, ...]:
    found = body.get(name) or []
    if not isinstance(found, list) or not all(isinstance(item, int) for item in found):
        raise BadRequest(f"{name} must be a list of integers", param=name)
    return tuple(found)


def mapping(body: Body, name: str) -> Body | None:
    found = body.get(name)
    if found is not None and not isinstance(found, dict):
        raise BadRequest(f"{name} must be an object", param=name)
    return found
