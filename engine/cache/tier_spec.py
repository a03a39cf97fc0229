"""Tiers of KV as the command line names them: `--kv-tier MEDIUM=FOLDER:MIB`, `--kv-tier peer=HOST:PORT:MIB`.

--kv-tier host=/dev/shm/pdgate-kv:256 --kv-tier disk=/var/lib/pdgate-kv:4096 --kv-tier peer=10.0.0.2:7700:64
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from pdgate.cluster import address

MEDIA: Final = ("host", "disk")
"""From the fastest on, which is the order in which they are asked."""
PEER: Final = "peer"
"""Tiers of an engine of another host, which are asked after all of these."""


@dataclass(frozen=True, slots=True)
class TierSpec:
    """
    Attributes:
        most_bytes: Of its files; what was not used for longest goes.
    """

    medium: str
    folder: str
    most_bytes: int


@dataclass(frozen=True, slots=True)
class PeerSpec:
    """
    Attributes:
        most_bytes: Of blocks that came from there and are not in pages yet.
    """

    host: str
    port: int
    most_bytes: int


def spec_of(word: str) -> TierSpec | PeerSpec:
    """Raises ValueError."""
    medium, _, rest = word.partition("=")
    where, _, size = rest.rpartition(":")
    known = (*MEDIA, PEER)
    if medium not in known or not where or not size.isdecimal() or int(size) < 1:
        raise ValueError(
            f"a KV tier is {' or '.join(MEDIA)}=FOLDER:MIB, or {PEER}=HOST:PORT:MIB, not {word!r}"
        )
    if medium == PEER:
        host, port = address.split(where)
        return PeerSpec(host, port, int(size) << 20)
    return TierSpec(medium, where, int(size) << 20)


def specs_of(words: Sequence[str]) -> list[TierSpec]:
    """Of folders, in the order in which they are asked. Raises ValueError."""
    specs = [one for one in map(spec_of, words) if isinstance(one, TierSpec)]
    specs.sort(key=lambda spec: MEDIA.index(spec.medium))
    if len({spec.medium for spec in specs}) < len(specs):
        raise ValueError("there is one KV tier of each medium")
    if len({os.path.realpath(spec.folder) for spec in specs}) < len(specs):
        raise ValueError("each KV tier has a folder of its own")
    return specs


def peers_of(words: Sequence[str]) -> list[PeerSpec]:
    """Of other hosts, in the order in which they are asked. Raises ValueError."""
    peers = [one for one in map(spec_of, words) if isinstance(one, PeerSpec)]
    if len({(peer.host, peer.port) for peer in peers}) < len(peers):
        raise ValueError("each KV tier of another host is named once")
    return peers
