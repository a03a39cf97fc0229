"""Options of a transfer backend, as words of a command line (protocols/options.py)."""

from collections.abc import Sequence

from pdgate.protocols import options, plugins
from pdgate.protocols.options import Value
from pdgate.transfer.memory import HOST

KIND = "transfer backend"


def read(backend: str, words: Sequence[str]) -> dict[str, Value]:
    """Keyword arguments for this backend. Raises LookupError, ValueError."""
    if not words:
        return {}
    return options.read(KIND, backend, _maker(backend), words)


def kinds(backend: str) -> dict[str, type]:
    """The options of a backend, by name. Raises LookupError."""
    return options.kinds(_maker(backend))


def moves(backend: str) -> frozenset[str]:
    """Kinds of memory that it takes. Raises LookupError."""
    found: frozenset[str] = getattr(_maker(backend), "moves", frozenset({HOST}))
    return found


def catalogue() -> str:
    """A line for each backend that is installed."""
    return "\n".join(
        f"{name:10} {options.listed(kinds(name)) or 'no options'}"
        for name in plugins.names(plugins.TRANSFERS)
    )


def catalogue_json() -> dict[str, dict[str, str]]:
    """Backend -> its options -> what they are: text, integer, number or yes/no."""
    return {name: options.named(kinds(name)) for name in plugins.names(plugins.TRANSFERS)}


def _maker(backend: str) -> type:
    found: type = plugins.find(plugins.TRANSFERS, KIND, backend).load()
    return found
