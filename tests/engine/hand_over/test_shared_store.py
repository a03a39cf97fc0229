"""A store of blocks in a folder: whatever lies there, a block is whole or is none, and files of others stay."""

import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pdgate.engine.hand_over.shared_store import BlockStore, folder_of
from tests.support.waiting import wait_until

SIZE = 1000
A, B, C, D = (letter * 64 for letter in "abcd")


@pytest.fixture
def store(tmp_path: Path) -> BlockStore:
    return BlockStore(tmp_path)


def pages(number: int) -> bytes:
    return bytes([number]) * SIZE


def test_a_block_is_what_was_put(store: BlockStore) -> None:
    assert store.put(A, pages(1)) == SIZE
    assert store.put(A, pages(1)) == 0

    assert bytes(store.get(A, SIZE)) == pages(1)
    with pytest.raises(FileNotFoundError):
        store.get(B, SIZE)


@pytest.mark.parametrize("harm", ["torn", "longer", "changed", "empty", "of another size"])
def test_a_file_that_is_not_whole_is_no_block(store: BlockStore, tmp_path: Path, harm: str) -> None:
    store.put(A, pages(1))
    data = (tmp_path / A).read_bytes()
    match harm:
        case "torn":
            (tmp_path / A).write_bytes(data[:-1])
        case "longer":
            (tmp_path / A).write_bytes(data + b"x")
        case "changed":
            (tmp_path / A).write_bytes(data[:-1] + b"\xff")
        case "empty":
            (tmp_path / A).write_bytes(b"")
        case _:
            store.remove(A)
            store.put(A, pages(1)[:-1])

    with pytest.raises(ValueError, match="no block"):
        store.get(A, SIZE)


def test_what_is_no_file_is_neither_followed_nor_waited_for(
    store: BlockStore, tmp_path: Path
) -> None:
    store.put(A, pages(1))
    (tmp_path / B).symlink_to(tmp_path / A)
    os.mkfifo(tmp_path / C)
    (tmp_path / D).mkdir()

    for name in (B, C, D):
        with pytest.raises((OSError, ValueError)):
            store.get(name, SIZE)


def test_a_link_in_place_of_a_block_is_replaced_and_not_written_through(
    store: BlockStore, tmp_path: Path
) -> None:
    target = tmp_path / "precious"
    (tmp_path / A).symlink_to(target)

    store.put(A, pages(1))

    assert not target.exists()
    assert bytes(store.get(A, SIZE)) == pages(1)


def test_a_folder_is_its_users_alone(tmp_path: Path) -> None:
    folder = folder_of(str(tmp_path / "new" / "store"))
    store = BlockStore(folder)

    store.put(A, pages(1))

    assert folder.stat().st_mode & 0o777 == 0o700
    assert (folder / A).stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("mode", [0o755, 0o770, 0o777, 0o711])
def test_a_folder_that_others_may_enter_is_refused(tmp_path: Path, mode: int) -> None:
    tmp_path.chmod(mode)

    with pytest.raises(ValueError, match="open to other users"):
        folder_of(str(tmp_path))


def test_a_folder_of_another_user_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.getuid", lambda: tmp_path.stat().st_uid + 1)

    with pytest.raises(ValueError, match="another user's"):
        folder_of(str(tmp_path))


def test_a_link_to_a_folder_is_refused(tmp_path: Path) -> None:
    """Else what is put at a well-known name makes an engine write, and remove, somewhere else."""
    (tmp_path / "home").mkdir(mode=0o700)
    (tmp_path / "store").symlink_to(tmp_path / "home")

    with pytest.raises(ValueError, match="is a link"):
        folder_of(str(tmp_path / "store"))


def test_room_is_made_of_blocks_and_of_what_killed_writers_left_alone(tmp_path: Path) -> None:
    store = BlockStore(tmp_path, most_bytes=2 * (SIZE + 36))
    mine = tmp_path / "letter.txt"
    mine.write_bytes(bytes(10 * SIZE))
    (tmp_path / ("e" * 64)).mkdir()
    left = tmp_path / ".pdst-left"
    left.write_bytes(bytes(SIZE))
    for at, path in enumerate((mine, left)):
        os.utime(path, (at, at))
    for at, name in enumerate((A, B, C), start=2):
        store.put(name, pages(1))
        os.utime(tmp_path / name, (at, at))

    store.make_room()

    assert mine.exists()
    assert not left.exists()
    assert [store.has(name) for name in (A, B, C)] == [False, True, True]


def test_a_disk_that_is_full_keeps_no_half_of_a_block(store: BlockStore, tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (SIZE // 2, hard))
    try:
        with pytest.raises(OSError, match="too large"):
            store.put(A, pages(1))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    assert list(tmp_path.iterdir()) == []


WRITER = """
import sys
from pathlib import Path
from pdgate.engine.hand_over.shared_store import BlockStore
store = BlockStore(Path(sys.argv[1]), most_bytes=50 << 20)
number = 0
while True:
    name = f"{number % 20:064x}"
    store.put(name, bytes([number % 20]) * (1 << 20))
    store.remove(f"{(number + 10) % 20:064x}")
    number += 1
"""


def test_writers_that_are_killed_leave_whole_blocks_or_none(tmp_path: Path) -> None:
    """Two that write the same blocks at the same time."""
    command = [sys.executable, "-c", WRITER, str(tmp_path)]
    writers = [subprocess.Popen(command) for _ in range(2)]
    store = BlockStore(tmp_path)
    read = 0

    def some_were_read() -> bool:
        nonlocal read
        for number in range(20):
            try:
                found = store.get(f"{number:064x}", 1 << 20)
            except FileNotFoundError:
                continue
            assert found == bytes([number]) * (1 << 20)
            read += 1
        return read > 50

    try:
        wait_until(some_were_read, "blocks of both writers")
    finally:
        for writer in writers:
            writer.send_signal(signal.SIGKILL)
            writer.wait()

    names = [path.name for path in tmp_path.iterdir() if not path.name.startswith(".pdst-")]
    for name in names:
        assert store.get(name, 1 << 20) == bytes([int(name, 16)]) * (1 << 20)
