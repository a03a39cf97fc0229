"""Files that are replaced at once, for us alone, in folders into which others may put something."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from pdgate.cluster import regular


def link_to_another(planted: Path) -> None:
    planted.symlink_to(planted.with_name("another"))


@pytest.mark.parametrize("plant", [os.mkfifo, link_to_another, Path.touch])
def test_what_is_written_goes_into_no_file_that_is_there(
    plant: Callable[[Path], None], tmp_path: Path
) -> None:
    """A fifo would keep us until somebody reads it, and what a link names is another's."""
    another, path = tmp_path / "another", tmp_path / "state.json"
    another.write_bytes(b"another's")
    plant(tmp_path / f"state.json.{os.getpid()}")

    regular.replace(path, b"ours")

    assert (path.read_bytes(), another.read_bytes()) == (b"ours", b"another's")
    assert path.stat().st_mode & 0o777 == 0o600
    assert sorted(one.name for one in tmp_path.iterdir()) == ["another", "state.json"]


def test_what_cannot_be_written_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "state.json"
    regular.replace(path, b"old")

    def full(_: int) -> None:
        raise OSError("no space is left")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="no space"):
        regular.replace(path, b"new")

    assert [one.name for one in tmp_path.iterdir()] == ["state.json"]
    assert path.read_bytes() == b"old"
