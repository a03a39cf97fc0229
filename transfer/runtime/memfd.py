"""Shared memory without a name: a file that lives as long as a process has it open or mapped.

The size of /dev/shm, which containers keep small, is no limit to it. What counts is what memory
the host and the container (cgroup v2) have left. It is taken when it is allocated:
left to the first write, its lack would end the process (SIGBUS, or the kernel's OOM killer).

Source: memfd_create(2), posix_fallocate(3), proc_meminfo(5), Linux cgroup-v2.rst.
"""

import mmap
import os
from pathlib import Path
from typing import Final

from pdgate.transfer.base import TransferError

MEMINFO: Final = Path("/proc/meminfo")
CGROUP: Final = Path("/sys/fs/cgroup")


def create(length: int, flags: int = 0) -> int:
    """A file descriptor, which the caller closes. Raises TransferError, OSError, ValueError."""
    if length < 0:
        raise ValueError(f"{length} bytes are no memory")
    left = left_bytes()
    if left is not None and length > left:
        raise TransferError(f"no shared memory left: {length} bytes asked for, {left} available")
    fd = os.memfd_create("pdgate-kv", os.MFD_CLOEXEC | flags)
    try:
        if length:
            os.posix_fallocate(fd, 0, length)
    except OSError as error:
        os.close(fd)
        raise TransferError(f"no shared memory left: {length} bytes asked for, {error}") from None
    except BaseException:
        os.close(fd)
        raise
    return fd


def mapped(fd: int, length: int) -> memoryview:
    """Raises OSError, ValueError."""
    return memoryview(mmap.mmap(fd, length))


def shared(length: int) -> tuple[int, memoryview]:
    """A new file and its bytes. Raises TransferError, OSError, ValueError."""
    fd = create(length)
    try:
        return fd, mapped(fd, length)
    except BaseException:
        os.close(fd)
        raise


def left_bytes() -> int | None:
    """What host and container have left; None if neither says."""
    found = [one for one in (_host_bytes(), _container_bytes()) if one is not None]
    return min(found, default=None)


def _host_bytes() -> int | None:
    try:
        lines = MEMINFO.read_text().splitlines()
    except OSError:
        return None
    kib = [int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")]
    return kib[0] * 1024 if kib else None


def _container_bytes() -> int | None:
    """Of the cgroup at the top of what we see, which in a container is its own."""
    try:
        most = (CGROUP / "memory.max").read_text().strip()
        used = int((CGROUP / "memory.current").read_text())
    except OSError:
        return None
    # Page cache counts as used, and this part of it the kernel gives back when it is asked.
    return None if most == "max" else max(0, int(most) - used + _inactive_file_bytes())


def _inactive_file_bytes() -> int:
    try:
        lines = (CGROUP / "memory.stat").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) for line in lines if line.startswith("inactive_file "))
