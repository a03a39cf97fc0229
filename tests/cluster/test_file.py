"""A file's slips take no engine away, and its changes are seen."""

import json
from pathlib import Path

import pytest

from pdgate.cluster.directory import Joined, Left, Listed, Lost, Refused, Resumed
from pdgate.cluster.file import File, parsed
from pdgate.cluster.member import Member
from tests.cluster.watching import D, P, following

TOML = """
["/workers/prefill/10.0.0.1/8100"]
protocol = "vllm-nixl"
epoch = "one"
kv = "10.0.0.1:5600"
"""


def watched(path: Path) -> File:
    return File(path=str(path), every_seconds=0.01)


def write(path: Path, text: str) -> None:
    """As a whole, as whoever writes such a file should."""
    beside = path.with_name(".beside")
    beside.write_text(text)
    beside.replace(path)


def as_json(*members: Member) -> str:
    return json.dumps({one.key: json.loads(one.value()) for one in members})


async def test_toml_says_what_json_says(tmp_path: Path) -> None:
    path = tmp_path / "engines.toml"
    path.write_text(TOML)

    async with following(watched(path)) as told:
        assert await told.next() == Listed({P.key: P})


async def test_a_file_that_is_broken_counts_as_what_it_said_last(tmp_path: Path) -> None:
    path = tmp_path / "engines.toml"
    write(path, TOML)
    async with following(watched(path)) as told:
        await told.next()
        write(path, "[no toml")

        assert await told.next() == Refused(str(path), "it is not valid TOML")
        write(path, "")
        assert [await told.next() for _ in range(2)] == [Left(P.key), Left(str(path))]


async def test_a_file_that_is_missing_takes_nobody_away(tmp_path: Path) -> None:
    """Somebody may be about to put another in its place."""
    path = tmp_path / "engines.toml"
    write(path, TOML)
    async with following(watched(path)) as told:
        await told.next()
        path.unlink()
        assert isinstance(await told.next(), Lost)
        write(path, TOML)

        assert await told.next() == Resumed()


async def test_a_folder_is_all_its_files_together(tmp_path: Path) -> None:
    """Those whose name begins with a dot are somebody's scratch."""
    write(tmp_path / "one.toml", TOML)
    write(tmp_path / ".hidden.toml", "[no toml")
    write(tmp_path / "README", "[no toml")
    async with following(watched(tmp_path)) as told:
        assert await told.next() == Listed({P.key: P})
        write(tmp_path / "two.json", as_json(D))
        assert await told.next() == Joined(D.key, D)
        (tmp_path / "one.toml").unlink()

        assert await told.next() == Left(P.key)


@pytest.mark.parametrize(
    ("suffix", "text"),
    [
        (".toml", b"\xff"),
        (".toml", b"[a"),
        (".json", b"[]"),
        (".json", b"null"),
        (".json", b"[" * 100_000),
        (".json", b""),
    ],
)
def test_what_is_no_table_of_entries_is_refused(suffix: str, text: bytes) -> None:
    with pytest.raises(ValueError, match=r"^it is"):
        parsed(suffix, text)


def test_a_path_is_needed() -> None:
    with pytest.raises(ValueError, match="missing"):
        File(path="")
