"""The page of `make matrix`: counted by what meets, and what was not run again stays as it was."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.matrix import CASE
from tools import matrix_table
from tools.matrix_table import MatrixCase, page, read

pytestmark = pytest.mark.source
ROOT = Path(__file__).parents[1]


def case(
    outcome: str = "passed", test: str = "tests/test_a.py::test_b", **values: str
) -> MatrixCase:
    return MatrixCase(test, values, outcome, "2026-11-27", 0.5)


def test_a_cell_counts_what_has_both_values() -> None:
    made = page(
        "",
        [
            *(case(row="one", backend="tcp", split=split) for split in "xy"),
            case("failed", row="one", backend="shm", split="x"),
            case(row="one", backend="shm", split="y"),
            case("skipped", row="two", backend="shm", split="y"),
        ],
    )

    assert (
        "| row | tcp | shm |\n|---|---|---|\n| one | 2 | 1 of 2 |\n| two |  | 0, 1 skipped |"
        in made
    )
    assert "2026-11-27: 2 row x 2 backend x 2 split; 3 passed, 1 failed, 1 skipped; 2 s." in made


def test_what_was_not_run_again_stays() -> None:
    first = page("", [case(row="a"), case("failed", "tests/test_z.py::test_z", row="z")])

    second = page(first, [case(row="other")])

    assert "| z | 0 of 1 |" in second
    assert ("| other | 1 |" in second, "| a | 1 |" in second) == (True, False)
    assert page(second, []) == second


def test_a_report_of_pytest_says_what_each_case_is_made_of(tmp_path: Path) -> None:
    report = tmp_path / "matrix.xml"
    run = ["-m", "pytest", "-q", "-m", "matrix", "-p", "no:cacheprovider", f"--junitxml={report}"]
    test = "tests/transfer/messenger/test_layouts.py"
    name = "test_every_token_of_every_head_and_layer_arrives_once"
    subprocess.run(
        [sys.executable, *run, f"{test}::{name}", "-k", "tcp"],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )

    found = read(report.read_text())

    assert {one.test for one in found} == {f"{test}::{name}"}
    assert {tuple(one.values) for one in found} == {("mode", "pair", "backend")}
    assert all("tcp" in one.values["backend"] for one in found)
    assert {one.outcome for one in found} == {"passed"}


def test_both_ends_call_the_property_alike() -> None:
    assert matrix_table.CASE == CASE
