"""A queue as one string, the same for all processes that share it.

redis://user:secret@10.0.0.1:6379/0?capacity=256&tries=3&redeliver_seconds=10
memory://any-name
"""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import TypeVar
from urllib.parse import parse_qsl, urlsplit, urlunsplit

Number = TypeVar("Number", int, float)

REDIS = ("redis", "rediss")
MEMORY = "memory"


@dataclass(frozen=True, slots=True)
class QueueSettings:
    """
    Attributes:
        url: Without our own options.
        capacity: Items that are not done yet; more are refused.
        tries: Deliveries of an item before it is given up.
        redeliver_seconds: An item that its worker does not hold for so long goes to another.
    """

    url: str
    capacity: int = 1024
    tries: int = 3
    redeliver_seconds: float = 10.0

    @property
    def scheme(self) -> str:
        return urlsplit(self.url).scheme

    @property
    def hold_seconds(self) -> float:
        """How often a worker says that it is still at it."""
        return self.redeliver_seconds / 4


def read(text: str) -> QueueSettings:
    """Raises ValueError, without the secrets that a URL may hold."""
    parts = urlsplit(text)
    if parts.scheme not in (*REDIS, MEMORY) or not parts.netloc:
        raise ValueError("a queue is redis://host:port/number, rediss://... or memory://name")
    settings = QueueSettings(urlunsplit(parts._replace(query="")))
    for name, value in parse_qsl(parts.query, keep_blank_values=True):
        match name:
            case "capacity":
                settings = replace(settings, capacity=_positive(name, value, int))
            case "tries":
                settings = replace(settings, tries=_positive(name, value, int))
            case "redeliver_seconds":
                settings = replace(settings, redeliver_seconds=_positive(name, value, float))
            case _:
                known = ", ".join(field.name for field in fields(QueueSettings)[1:])
                raise ValueError(f"a queue has no option {name!r}; there are {known}")
    return settings


def _positive(name: str, value: str, kind: Callable[[str], Number]) -> Number:
    try:
        number = kind(value)
    except ValueError:
        raise ValueError(f"{name}={value!r} is no number") from None
    if not 0 < number < float("inf"):
        raise ValueError(f"{name} must be positive")
    return number
