"""What a look at the store finds, and what of it can be used. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from pdgate.cluster.polled import Seen

LONGEST_LEASE_SECONDS: Final = 3600.0
"""Nobody needs more; who says so has another clock, or wants to stay for ever."""


@dataclass(frozen=True, slots=True)
class Found:
    """
    Attributes:
        id: Of this life of the store: a store that was emptied has another one.
        revision: Of its contents.
        seen: None if the contents are those that were known.
    """

    id: str
    revision: int
    seen: Seen | None = field(default=None)

    @property
    def version(self) -> tuple[str, str]:
        return self.id, str(self.revision)


def found(reply: Sequence[Any]) -> Found:
    """Of the answer to LOOK."""
    id_, revision = _text(reply[0]), int(reply[1])
    if len(reply) == 2:
        return Found(id_, revision)
    _, _, now_ms, values, leases, order = reply
    seen = _usable(
        {_text(key): value for key, value in _pairs(values)},
        {_text(key): float(until_ms) - now_ms for key, until_ms in _pairs(leases)},
        [_text(key) for key in order],
    )
    return Found(id_, revision, seen)


def _usable(
    values: Mapping[str, bytes], left_ms: Mapping[str, float], order: Sequence[str]
) -> Seen:
    """In the order of writing; `left_ms`: what is left of each lease."""
    entries: dict[str, bytes] = {}
    refused: dict[str, str] = {}
    for key in dict.fromkeys([*order, *values]):
        left = left_ms.get(key)
        if key not in values:
            refused[key] = "it has a lease, and says nothing"
        elif left is None:
            refused[key] = "it has no lease"
        # A score may be infinite, too.
        elif not left <= 1000 * LONGEST_LEASE_SECONDS:
            refused[key] = f"its lease ends in more than {LONGEST_LEASE_SECONDS:.0f} s"
        else:
            entries[key] = values[key]
    return Seen(entries, refused)


def _pairs(flat: Sequence[Any]) -> list[tuple[Any, Any]]:
    return list(zip(flat[::2], flat[1::2], strict=True))


def _text(raw: bytes) -> str:
    """Strangers may write any bytes."""
    return raw.decode(errors="replace")
