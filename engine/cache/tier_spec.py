"""Tiers of KV as the command line names them: `--kv-tier MEDIUM=FOLDER:MIB`.

--kv-tier host=/dev/shm/pdgate-kv:256 --kv-tier disk=/var/lib/pdgate-kv:4096
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

MEDIA: Final = ("host", "disk")
"""From the fastest on, which is the order in which they are asked."""


@dataclass(frozen=True, slots=True)
class TierSpec:
    """
    Attributes:
        most_bytes: Of its files; what was not used for longest goes.
    """

    medium: str
    folder: str
    most_bytes: int


def spec_of(word: str) -> TierSpec:
    """Raises ValueError."""
    medium, _, rest = word.partition("=")
    folder, _, size = rest.rpartition(":")
    if medium not in MEDIA or not folder or not size.isdecimal() or int(size) < 1:
        raise ValueError(f"a KV tier is {' or '.join(MEDIA)}=FOLDER:MIB, not {word!r}")
    return TierSpec(medium, folder, int(size) << 20)


def specs_of(words: Sequence[str]) -> list[TierSpec]:
    """In the order in which they are asked. Raises ValueError."""
    specs = sorted(map(spec_of, words), key=lambda spec: MEDIA.index(spec.medium))
    if len({spec.medium for spec in specs}) < len(specs):
        raise ValueError("there is one KV tier of each medium")
    if len({os.path.realpath(spec.folder) for spec in specs}) < len(specs):
        raise ValueError("each KV tier has a folder of its own")
    return specs
