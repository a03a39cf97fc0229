"""The queue of files: it names files that are there, and puts what belongs together in one place."""

from pathlib import Path

import pytest

from tests.file_queue import SECONDS, TOGETHER, taken_as_one

pytestmark = pytest.mark.source

ROOT = Path(__file__).parents[1]


def test_every_file_is_there() -> None:
    named = {*TOGETHER, *SECONDS} - set(TOGETHER.values())
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
