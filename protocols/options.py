"""Options of parts that are found by name, as words of a command line.

    class Acme(Backend):
        def __init__(self, host: str = "", advertise: str = "", *, lanes: int = 4) -> None: ...

    --transfer acme --transfer-option lanes=8

What may be set is what the constructor (or function) takes by keyword only, as a text, number
or truth value; so a part that has options declares them where they are used, and nowhere else.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, get_type_hints

Value = str | int | float | bool

_KINDS: Final[Mapping[type, str]] = {str: "text", int: "integer", float: "number", bool: "yes/no"}
_TRUTHS: Final = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


def read(
    kind: str, name: str, make: Callable[..., object], words: Sequence[str]
) -> dict[str, Value]:
    """Keyword arguments for `make`, the `kind` called `name`. Raises ValueError."""
    known = kinds(make) if words else {}
    found: dict[str, Value] = {}
    for word in words:
        option, equals, text = word.partition("=")
        option = option.strip().replace("-", "_")
        if not equals:
            raise ValueError(f"option {word!r} of the {kind} {name!r} must be name=value")
        if option not in known:
            raise ValueError(
                f"{kind} {name!r} has no option {option!r}; there are {listed(known) or 'none'}"
            )
        if option in found:
            raise ValueError(f"option {option!r} of the {kind} {name!r} is given twice")
        found[option] = _value(option, known[option], text.strip())
    return found


def kinds(make: Callable[..., object]) -> dict[str, type]:
    """The options, by name."""
    declared: Any = make
    types = get_type_hints(declared.__init__ if inspect.isclass(make) else declared)
    return {
        name: types[name]
        for name, one in inspect.signature(make).parameters.items()
        if one.kind is inspect.Parameter.KEYWORD_ONLY and types.get(name) in _KINDS
    }


def needed(make: Callable[..., object]) -> list[str]:
    """The options that have no default."""
    parameters = inspect.signature(make).parameters
    return [name for name in kinds(make) if parameters[name].default is inspect.Parameter.empty]


def named(known: Mapping[str, type]) -> dict[str, str]:
    """Option -> what it is, in words."""
    return {name: _KINDS[kind] for name, kind in sorted(known.items())}


def listed(known: Mapping[str, type]) -> str:
    return ", ".join(f"{name} ({kind})" for name, kind in named(known).items())


def _value(name: str, kind: type, text: str) -> Value:
    try:
        value: Value = _TRUTHS[text.lower()] if kind is bool else kind(text)
    except (KeyError, ValueError):
        raise ValueError(f"the option {name} is no {_KINDS[kind]}: {text!r}") from None
    return value
