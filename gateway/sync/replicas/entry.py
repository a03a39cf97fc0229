"""The entry of one process of a gateway, for its replicas, as the bytes that stand in Redis.

    {"version": 1, "gateway": "host-5f0c...", "load": {"http://10.0.0.1:8100": [3, 1200, 400, 2]}}

`load` has the engines at which it has something in flight: calls, prompt tokens, those of them
that are not computed yet, answers in progress. An engine is named by its URL and data-parallel
rank, as replicas may have other ids for it. JSON, as operators may want to look at it.
"""

from typing import Annotated, Final

import msgspec

from pdgate.protocols.instance import Instance
from pdgate.scheduling.neighbours import Numbers

VERSION: Final = 1
MOST: Final = 1 << 40
"""No gateway has as much in flight."""

Number = Annotated[int, msgspec.Meta(ge=0, le=MOST)]
Load = dict[str, tuple[Number, Number, Number, Number]]
"""Name of an engine -> what is in flight there."""


class BadEntry(Exception):
    """An entry that no replica of this version writes; the message says why, for operators."""


class Entry(msgspec.Struct, frozen=True):
    """
    Attributes:
        gateway: The same for all workers of one gateway.
    """

    version: int
    gateway: str
    load: Load


class _EntryVersion(msgspec.Struct):
    version: int


_entry: Final = msgspec.json.Decoder(Entry)
_version: Final = msgspec.json.Decoder(_EntryVersion)


def name_of(instance: Instance) -> str:
    """The same at every replica that sends calls to this engine."""
    return instance.url if instance.dp_rank is None else f"{instance.url}#{instance.dp_rank}"


def encode(gateway: str, load: dict[str, Numbers]) -> bytes:
    return msgspec.json.encode(Entry(VERSION, gateway, load))


def decode(data: bytes) -> Entry:
    """Raises BadEntry."""
    try:
        version = _version.decode(data).version
        if version != VERSION:
            raise BadEntry(f"it is of version {version}, and {VERSION} is known here")
        return _entry.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BadEntry(str(error)) from error
