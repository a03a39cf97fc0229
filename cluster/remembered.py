"""The last known fleet, in a file, for a start while the store is away.

    {"version": 1, "at": 1790000000.0, "entries": {"/workers/decode/10.0.0.2/8200": {...}}}

`at` is when the list was last known to be true, in seconds since 1970. Entries are as the
store has them and pass the same checks when they are read: write access to the file chooses
whom we dial, as with the store. Written to a file beside it that then takes its place, so that a
reader finds the old list or the new one, and never half of one.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pdgate.cluster import regular
from pdgate.cluster.directory import listed
from pdgate.cluster.member import Member

VERSION: Final = 1
OLDEST_SECONDS: Final = 24 * 3600.0
"""Older lists are of no use: addresses have been given to others since."""
MAX_BYTES: Final = 64 << 20


class BadFile(ValueError):
    """The file is there and cannot be used; the message says why, for operators."""


@dataclass(frozen=True, slots=True)
class Remembered:
    """
    Attributes:
        members: Key -> member.
        at: When that was true, in seconds since 1970.
    """

    members: Mapping[str, Member]
    at: float


def write(path: Path, members: Mapping[str, Member], now: float) -> None:
    """Readable for us alone: it says where engines are. Raises OSError."""
    entries = {key: json.loads(member.value()) for key, member in members.items()}
    data = json.dumps({"version": VERSION, "at": now, "entries": entries}).encode()
    regular.replace(path, data)


def read(path: Path, now: float) -> Remembered | None:
    """Read the list; None if there is no file. Raise BadFile, also for a list that is too old."""
    try:
        said = json.loads(regular.read(path, MAX_BYTES))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise BadFile(f"{path}: {error.strerror}") from None
    except (ValueError, RecursionError):
        raise BadFile(f"{path} is no JSON") from None
    match said:
        case {"version": int(version), "at": float(at), "entries": dict(entries)}:
            pass
        case _:
            raise BadFile(f"{path} is no list of engines")
    if version != VERSION:
        raise BadFile(f"{path} has version {version}, not {VERSION}")
    if now - at > OLDEST_SECONDS:
        raise BadFile(f"{path} is {(now - at) / 3600:.0f} h old")
    found = listed({key: json.dumps(value).encode() for key, value in entries.items()})
    return Remembered(found.members, at)
