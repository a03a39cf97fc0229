"""Contents of the store at one look, and what of them can be used. Pure."""

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from pdgate.cluster.directory import MOST_ENTRIES, TOO_MANY, StoreAway
from pdgate.cluster.polled import Seen

LONGEST_LEASE_SECONDS: Final = 3600.0
"""None needs more; a longer one is of another clock, or is to stay for ever."""
LONGEST_LEASE_MS: Final = 1000 * LONGEST_LEASE_SECONDS

_HEAD: Final = struct.Struct(">IId")


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
    """Contents of the answer to LOOK. Raise StoreAway for what no script of ours leaves there."""
    try:
        id_, revision = _text(reply[0]), int(reply[1])
    except ValueError:
        raise StoreAway(f"Redis: its revision is no number, but {reply[1][:40]!r}") from None
    return Found(id_, revision, _usable(reply[2]) if len(reply) > 2 else None)


def _usable(packed: bytes) -> Seen:
    """In the order of writing."""
    entries: dict[str, bytes] = {}
    refused: dict[str, str] = {}
    at = 0
    while at < len(packed):
        key_bytes, value_bytes, left_ms = _HEAD.unpack_from(packed, at)
        at += _HEAD.size
        key = _text(packed[at : at + key_bytes])
        at += key_bytes
        value = packed[at : at + value_bytes]
        at += value_bytes
        if len(entries) + len(refused) >= MOST_ENTRIES:
            refused[key] = TOO_MANY
            break
        if left_ms < 0:
            refused[key] = "it has no lease"
        elif left_ms > LONGEST_LEASE_MS:
            refused[key] = f"its lease ends in more than {LONGEST_LEASE_SECONDS:.0f} s"
        else:
            entries[key] = value
    return Seen(entries, refused)


def _text(raw: bytes) -> str:
    """Strangers may write any bytes."""
    return raw.decode(errors="replace")
