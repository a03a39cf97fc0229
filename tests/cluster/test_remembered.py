"""A list of engines outlives a process, and nothing but a good list is used."""

import json
from pathlib import Path

import pytest

from pdgate.cluster import remembered
from pdgate.cluster.remembered import OLDEST_SECONDS, BadFile, Remembered
from tests.cluster.watching import D, P

NOW = 1_790_000_000.0
BOTH = {P.key: P, D.key: D}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "made" / "fleet.json"


def test_what_is_written_is_read(path: Path) -> None:
    remembered.write(path, BOTH, NOW)

    assert remembered.read(path, NOW + 60) == Remembered(BOTH, NOW)
    assert path.stat().st_mode & 0o777 == 0o600
    assert [one.name for one in path.parent.iterdir()] == [path.name]


def test_the_last_one_counts(path: Path) -> None:
    for members in (BOTH, {D.key: D}):
        remembered.write(path, members, NOW)

    found = remembered.read(path, NOW)
    assert found is not None
    assert list(found.members) == [D.key]


def test_no_file_is_no_list(path: Path) -> None:
    assert remembered.read(path, NOW) is None


def test_a_list_that_is_too_old_is_not_used(path: Path) -> None:
    remembered.write(path, BOTH, NOW)

    assert remembered.read(path, NOW + OLDEST_SECONDS) is not None
    with pytest.raises(BadFile, match="24 h old"):
        remembered.read(path, NOW + OLDEST_SECONDS + 1)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff",
        b"[]",
        b"[" * 100_000,
        b'{"version": 1, "at": 1.0}',
        json.dumps({"version": 2, "at": NOW, "entries": {}}).encode(),
    ],
    ids=["empty", "no text", "list", "deep", "half", "version"],
)
def test_anything_else_is_refused_with_the_files_name(path: Path, data: bytes) -> None:
    path.parent.mkdir()
    path.write_bytes(data)

    with pytest.raises(BadFile, match=str(path)):
        remembered.read(path, NOW)


def test_entries_pass_the_checks_of_the_store(path: Path) -> None:
    """Whoever can write the file must not make us dial anything but a host and a port."""
    path.parent.mkdir()
    entries = {P.key: {}, "/workers/prefill/a/b?c/80": {}, D.key: {"scheme": "file"}}
    path.write_text(json.dumps({"version": 1, "at": NOW, "entries": entries}))

    found = remembered.read(path, NOW)

    assert found is not None
    assert list(found.members) == [P.key]
