"""What a process holds, as Linux tells it."""

import os
from dataclasses import dataclass
from pathlib import Path

_PAGE_BYTES = os.sysconf("SC_PAGESIZE")


@dataclass(frozen=True, slots=True)
class Holding:
    """
    Attributes:
        bytes: Resident memory.
        descriptors: Open files and sockets.
    """

    bytes: int
    descriptors: int


def holding(pid: int) -> Holding:
    """Raises FileNotFoundError when it is gone."""
    folder = Path(f"/proc/{pid}")
    pages = int((folder / "statm").read_text(encoding="ascii").split()[1])
    return Holding(pages * _PAGE_BYTES, len(list((folder / "fd").iterdir())))
