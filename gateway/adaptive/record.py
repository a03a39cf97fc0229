"""What is decided about sides, as all processes know it: JSON in a store."""

from typing import Literal

import msgspec

Side = Literal["prefill", "decode"]

REMEMBERED = 50
"""Changes."""


class BadRecord(Exception):
    """What is in the store is no record; the message says why."""


class RoleChange(msgspec.Struct, frozen=True):
    """
    Attributes:
        at: Unix seconds.
        first: It had not been on a side before.
    """

    at: float
    instance: str
    to: Side
    reason: str
    first: bool = False


class RoleRecord(msgspec.Struct, frozen=True):
    """
    Attributes:
        by: Who decides, a name drawn at its start.
        beat: Goes up with each round, so that others see that it lives.
        sides: Instance id -> what it is to serve.
        changes: The latest, oldest first.
    """

    by: str
    beat: int
    sides: dict[str, Side] = {}
    changes: tuple[RoleChange, ...] = ()


def to_bytes(record: RoleRecord) -> bytes:
    return msgspec.json.encode(record)


def from_bytes(value: bytes) -> RoleRecord:
    """Raises BadRecord."""
    try:
        return msgspec.json.decode(value, type=RoleRecord)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise BadRecord(str(error)) from error
