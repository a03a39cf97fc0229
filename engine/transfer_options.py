"""Options of a transfer backend, as words of a command line.

    class Acme(Backend):
        def __init__(self, host: str = "", advertise: str = "", *, lanes: int = 4) -> None: ...

    --transfer acme --transfer-option lanes=8

What may be set is what the backend's constructor takes by keyword only, as a text, number
or truth value; so a backend declares its options where it uses them, and nowhere else.
"""

import inspect
from collections.abc import Mapping, Sequence
from typing import Any, Final, get_type_hints

from pdgate.protocols import plugins

Value = str | int | float | bool

_KINDS: Final[Mapping[type, str]] = {str: "text", int: "integer", float: "number", bool: "yes/no"}
_TRUTHS: Final = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


def read(backend: str, words: Sequence[str]) -> dict[str, Value]:
    """Keyword arguments for this backend. Raises LookupError, ValueError."""
    known = kinds(backend) if words else {}
    found: dict[str, Value] = {}
    for word in words:
        name, equals, text = word.partition("=")
        name = name.strip().replace("-", "_")
        if not equals:
            raise ValueError(f"transfer option {word!r} must be name=value")
        if name not in known:
            raise ValueError(
                f"transfer backend {backend!r} has no option {name!r}; "
                f"there are {_listed(known) or 'none'}"
            )
        if name in found:
            raise ValueError(f"transfer option {name!r} is given twice")
        found[name] = _value(name, known[name], text.strip())
    return found


def kinds(backend: str) -> dict[str, type]:
    """The options of a backend, by name. Raises LookupError."""
    make: Any = plugins.find(plugins.TRANSFERS, "transfer backend", backend).load()
    types = get_type_hints(make.__init__)
    return {
        name: types[name]
        for name, one in inspect.signature(make.__init__).parameters.items()
        if one.kind is inspect.Parameter.KEYWORD_ONLY and types.get(name) in _KINDS
    }


def catalogue() -> str:
    """A line for each backend that is installed."""
    return "\n".join(
        f"{name:10} {_listed(kinds(name)) or 'no options'}"
        for name in plugins.names(plugins.TRANSFERS)
    )


def _listed(known: Mapping[str, type]) -> str:
    return ", ".join(f"{name} ({_KINDS[kind]})" for name, kind in sorted(known.items()))


def _value(name: str, kind: type, text: str) -> Value:
    try:
        value: Value = _TRUTHS[text.lower()] if kind is bool else kind(text)
    except (KeyError, ValueError):
        raise ValueError(f"transfer option {name} is no {_KINDS[kind]}: {text!r}") from None
    return value
