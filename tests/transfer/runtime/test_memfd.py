"""Memory that is not there is an error when it is asked for, not a crash when it is used."""

import os
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from pdgate.transfer import registry
from pdgate.transfer.base import TransferError
from pdgate.transfer.runtime import memfd

GIB = 1 << 30


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A host with 2 GiB left, in a container without limits."""
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal: 9000000 kB\nMemAvailable: 2097152 kB\n")
    monkeypatch.setattr(memfd, "MEMINFO", meminfo)
    monkeypatch.setattr(memfd, "CGROUP", tmp_path)
    return tmp_path


def limit(machine: Path, most: str, used: int, cache: int = 0) -> None:
    (machine / "memory.max").write_text(f"{most}\n")
    (machine / "memory.current").write_text(f"{used}\n")
    (machine / "memory.stat").write_text(f"anon 5\ninactive_file {cache}\n")


@pytest.mark.parametrize("name", ["shm", "tcp"])
def test_more_than_the_machine_has_left_is_refused_with_both_numbers(
    name: str, machine: Path
) -> None:
    with (
        closing(registry.load(name)) as backend,
        pytest.raises(TransferError, match=rf"no shared memory left: {4 * GIB}.* {2 * GIB} avail"),
    ):
        # A segment has a header on top, which this is not about.
        backend.allocate(4 * GIB - (4096 if name == "shm" else 0))


def test_what_the_host_has_left_counts(machine: Path) -> None:
    assert memfd.left_bytes() == 2 * GIB


def test_a_container_may_have_less_left_than_its_host(machine: Path) -> None:
    limit(machine, str(3 * GIB), used=GIB * 5 // 2)

    assert memfd.left_bytes() == GIB // 2


def test_cache_that_can_be_dropped_is_left(machine: Path) -> None:
    limit(machine, str(GIB), used=GIB, cache=GIB // 4)

    assert memfd.left_bytes() == GIB // 4


def test_a_container_without_a_limit_has_what_its_host_has(machine: Path) -> None:
    limit(machine, "max", used=GIB)

    assert memfd.left_bytes() == 2 * GIB


def test_where_nobody_says_what_is_left_the_kernel_decides(machine: Path) -> None:
    (machine / "meminfo").unlink()

    assert memfd.left_bytes() is None
    os.close(memfd.create(4096))


def test_memory_is_taken_when_it_is_allocated() -> None:
    """Blocks of 512 bytes; a file that was only made long has none."""
    fd = memfd.create(1 << 20)
    try:
        assert os.fstat(fd).st_blocks * 512 >= 1 << 20
    finally:
        os.close(fd)


def test_what_the_kernel_refuses_is_the_same_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(fd: int, offset: int, length: int) -> None:
        raise OSError(28, "No space left on device")

    made: list[int] = []
    create = os.memfd_create

    def noted(*args: Any) -> int:
        made.append(create(*args))
        return made[0]

    monkeypatch.setattr(os, "posix_fallocate", full)
    monkeypatch.setattr(os, "memfd_create", noted)

    with pytest.raises(
        TransferError, match=r"no shared memory left: 4096 bytes asked for, .*space"
    ):
        memfd.create(4096)

    # Of all files of the process others may have been closed meanwhile.
    (fd,) = made
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


def test_a_negative_length_is_refused() -> None:
    with pytest.raises(ValueError, match="-1"):
        memfd.create(-1)
