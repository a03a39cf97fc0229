"""Memory limit: how much a gateway may take, and how much of that clients' bodies.

    machine, or its cgroup     half of it is what all processes of a gateway take, unless set
      one worker's share       divided by the workers
        elsewhere              what it takes without clients, and its index of prompts when that is full
        bodies                 the rest, by COPIES

Sources: Linux, Documentation/admin-guide/cgroup-v2.rst (memory.max), cgroup-v1/memory.rst
(memory.limit_in_bytes); cgroups(7) on /proc/self/cgroup.
"""

import logging
import os
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Final

log = logging.getLogger(__name__)

SHARE: Final = 0.5
COPIES: Final = 4
"""Of a body at the worst: as it came, as it is made for an engine and written to it, and what the allocator keeps.

A minute of 300 clients with 8 MB each took 3.5 (by 3, 400 MiB became 540 MB)."""

LEAST_BYTES: Final = 32 << 20
"""For bodies, however small the machine: one call must pass."""

_ROOT: Final = Path("/sys/fs/cgroup")


def of_machine() -> int:
    """Bytes: the machine's, or what its cgroup may have."""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([physical, *_cgroup_limits()])


def for_bodies(max_bytes: int | None, workers: int, elsewhere_bytes: int) -> int:
    """What one process may hold of bodies; `max_bytes` for all of them, None for SHARE of the machine.

    `elsewhere_bytes` besides what is resident now.
    """
    all_of_it = int(of_machine() * SHARE) if max_bytes is None else max_bytes
    own = all_of_it // workers
    rest = own - _resident_bytes() - elsewhere_bytes
    found = rest // COPIES
    if found < LEAST_BYTES:
        if max_bytes is not None:
            log.warning(
                "--max-memory leaves %d bytes for the bodies of calls in each process: %d are taken",
                max(0, found),
                LEAST_BYTES,
            )
        return LEAST_BYTES
    return found


def _resident_bytes() -> int:
    """Of this process, in the machine's memory: proc(5), /proc/self/statm."""
    try:
        pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[1]
    except OSError:
        # Not Linux: the most that there ever was, in KiB.
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def _cgroup_limits() -> Iterator[int]:
    """Of the cgroup that we are in, and of those that it is in."""
    try:
        lines = Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            name, at = "memory.max", _ROOT / path.lstrip("/")
        elif "memory" in controllers.split(","):
            name, at = "memory.limit_in_bytes", _ROOT / "memory" / path.lstrip("/")
        else:
            continue
        # In a container the path may be the host's, of which only the top is there.
        for folder in (at, *at.parents):
            if not folder.is_relative_to(_ROOT):
                break
            try:
                said = (folder / name).read_text(encoding="ascii").strip()
            except OSError:
                continue
            if said.isdigit():
                yield int(said)
