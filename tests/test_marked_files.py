"""Files that have tests with a mark: by their own words, their folder's, or those of what they have from tests/support."""

from pathlib import Path

import pytest

from tests.marked_files import SUPPORT, hidden, is_hidden, is_left_out

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize(
    "path",
    [
        "tests/lab/chaos/test_killed_engines.py",
        # By adversary/conftest.py, and by the backends of support/kv_backends.py.
        "tests/adversary/test_memory.py",
        "tests/transfer/test_registered_memory.py",
    ],
)
def test_a_file_with_slow_tests_is_imported_for_them(path: str) -> None:
    assert not is_left_out(ROOT / path, "slow")


def test_one_without_is_imported_only_where_others_are_asked_for(tmp_path: Path) -> None:
    (file := tmp_path / "test_it.py").write_text("def test_a(): ...\n")

    assert is_left_out(file, "slow")
    assert is_left_out(file, "matrix")
    assert not is_left_out(file, "not slow")
    assert not is_left_out(file, "")
    assert not is_left_out(SUPPORT, "slow")


def test_a_mark_that_nothing_there_names_hides_a_test(request: pytest.FixtureRequest) -> None:
    """(This very one, whose file does not say it.)"""
    assert not is_hidden(request.node)
    request.node.add_marker("slow")

    assert is_hidden(request.node)


def test_no_test_is_hidden() -> None:
    """Of those that were collected with this one: of all, in `make test`."""
    assert hidden == []
