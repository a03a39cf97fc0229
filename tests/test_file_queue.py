"""The queue of files: it names files that are there, and puts what belongs together in one place."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.end_to_end.vllm import engines
from tests.file_queue import SECONDS, TOGETHER, taken_as_one
from tests.support.waiting import PATIENCE_SECONDS

pytestmark = pytest.mark.source

ROOT = Path(__file__).parents[1]
PAIRS_OF_VLLM = {one.name for one in vars(engines).values() if isinstance(one, engines.Transfer)}
DIES = """
import os, signal, pytest

@pytest.mark.parametrize("number", range(4))
def test_killed(number):
    if number == 1:
        os.kill(os.getpid(), signal.SIGKILL)
"""


def test_every_file_is_there() -> None:
    named = {*TOGETHER, *SECONDS} - set(TOGETHER.values()) - PAIRS_OF_VLLM
    assert [path for path in sorted(named) if not (ROOT / path).is_file()] == []


def test_what_is_part_of_a_group_has_no_place_of_its_own() -> None:
    assert SECONDS.keys() & TOGETHER.keys() == set()
    assert set(TOGETHER.values()) <= SECONDS.keys()


def test_tests_of_a_file_are_taken_as_one() -> None:
    assert (
        taken_as_one("tests/lab/test_processes.py::test_a[b::c]") == "tests/lab/test_processes.py"
    )
    chaos = (path for path, group in TOGETHER.items() if group == "chaos")
    assert {taken_as_one(f"{path}::test_a") for path in chaos} == {"chaos"}


def test_what_is_asked_of_one_pair_of_vllm_is_taken_as_one() -> None:
    """It starts once, whatever file asks and by whatever protocol."""
    for pair in PAIRS_OF_VLLM:
        for test in (f"test_a.py::test_b[{pair}]", f"test_c.py::test_d[{pair}-vllm-nixl-batch-5]"):
            assert taken_as_one(f"tests/end_to_end/vllm/{test}") == pair
    assert taken_as_one("tests/lab/test_a.py::test_b[vllm-nixl]") == "tests/lab/test_a.py"


def test_a_run_whose_process_dies_ends_and_names_the_test(tmp_path: Path) -> None:
    """It waited for ever, where all other processes had ended."""
    (tmp_path / "test_dies.py").write_text(DIES)
    (tmp_path / "test_else.py").write_text("def test_else(): ...")

    run = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", str(tmp_path), "--rootdir", str(tmp_path)),
            *("-p", "tests.file_queue", "-p", "no:cacheprovider", "-rf", "-o", "addopts="),
            *("--dist", "loadfile", "--tx", "2*popen"),
        ],
        check=False,
        cwd=ROOT,
        capture_output=True,
        text=True,
        # Three pytests start in it, which is 8 s of CPU time: on a machine with much else to do a minute is too short.
        timeout=5 * PATIENCE_SECONDS,
    )

    assert run.returncode == pytest.ExitCode.INTERRUPTED, run.stdout
    assert "crashed while running" in run.stdout
    assert "test_killed[1]" in run.stdout
