"""The folder goes with its gateway; if that was killed, when the next one starts."""

import subprocess
import sys
from pathlib import Path

from pdgate.gateway.sync.workers.place import shared_folder

KILLS_ITSELF = """
import os, signal, sys
from pathlib import Path
from pdgate.gateway.sync.workers.place import shared_folder

with shared_folder(Path(sys.argv[1])) as folder:
    (folder / "1-a.table").write_bytes(b"0")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_it_is_gone_afterwards(tmp_path: Path) -> None:
    with shared_folder(tmp_path) as folder:
        (folder / "1-a.table").touch()

    assert list(tmp_path.iterdir()) == []


def test_two_gateways_have_folders_of_their_own(tmp_path: Path) -> None:
    with shared_folder(tmp_path) as one, shared_folder(tmp_path) as other:
        assert one != other
        assert {one, other} == set(tmp_path.iterdir())


def test_what_a_killed_gateway_left_is_removed_by_the_next(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", KILLS_ITSELF, str(tmp_path)], check=False)
    (left,) = tmp_path.iterdir()

    with shared_folder(tmp_path) as folder:
        assert list(tmp_path.iterdir()) == [folder]
        assert folder != left
