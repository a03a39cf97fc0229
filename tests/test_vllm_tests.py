"""Which tests on real vLLM are run before a change lands: tools/vllm_tests.sh."""

import os
import re
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.source

ROOT = Path(__file__).parents[1]
TOOL = ROOT / "tools/vllm_tests.sh"
FOLDER = "tests/end_to_end/vllm"
TENSORS = "tests/engine/tensors"
ALL = [FOLDER, TENSORS]


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """With one commit that has landed, upon another."""
    folder = tmp_path / "repository"
    folder.mkdir()
    _git(folder, "init", "--quiet", "--initial-branch", "work")
    for file in ("conftest", "test_doctor", "test_kv_events"):
        _commit(folder, f"{FOLDER}/{file}.py")
    _commit(folder, "docs/first.md")
    _git(folder, "update-ref", "refs/remotes/origin/main", "HEAD")
    return folder


@pytest.mark.parametrize(
    "file",
    ["forwarders/new.py", "engine/vllm/work.py", "gateway/upstream/a.py", f"{FOLDER}/conftest.py"],
)
def test_a_change_to_what_carries_calls_has_all_run(repository: Path, file: str) -> None:
    _commit(repository, file, "changed")

    assert _tests(repository) == ALL


@pytest.mark.parametrize(
    ("file", "tests"),
    [
        ("operations/doctor/checks.py", ["test_doctor.py"]),
        ("gateway/kv_events/feed.py", ["test_kv_events.py"]),
        (f"{FOLDER}/test_doctor.py", ["test_doctor.py"]),
        (f"{FOLDER}/test_new.py", ["test_new.py"]),
    ],
)
def test_a_change_to_what_one_of_them_shows_has_that_one_run(
    repository: Path, file: str, tests: list[str]
) -> None:
    _commit(repository, file, "changed")

    assert _tests(repository) == [f"{FOLDER}/{name}" for name in tests]


@pytest.mark.parametrize("file", ["engine/model/layers.py", f"{TENSORS}/test_new.py"])
def test_a_change_to_our_engine_has_its_tests_on_tensors_run(repository: Path, file: str) -> None:
    _commit(repository, f"{TENSORS}/conftest.py")
    _git(repository, "update-ref", "refs/remotes/origin/main", "HEAD")
    _commit(repository, file, "changed")

    assert TENSORS in _tests(repository)


def test_a_change_to_anything_else_leaves_them_out(repository: Path) -> None:
    _commit(repository, "docs/page.md")

    assert _tests(repository) == []


def test_before_a_release_all_are_run(repository: Path) -> None:
    _commit(repository, "docs/page.md")
    _git(repository, "tag", "v1.2.3")

    assert _tests(repository) == ALL


def test_what_is_not_committed_counts(repository: Path) -> None:
    _commit(repository, "docs/page.md")
    _write(repository, "protocols/new.py")

    assert _tests(repository) == ALL


def test_what_landed_elsewhere_since_does_not_count(repository: Path) -> None:
    _commit(repository, "docs/page.md")
    _git(repository, "checkout", "--quiet", "-b", "others", "origin/main")
    _commit(repository, "forwarders/theirs.py")
    _git(repository, "update-ref", "refs/remotes/origin/main", "HEAD")
    _git(repository, "checkout", "--quiet", "work")

    assert _tests(repository) == []


def test_where_all_has_landed_what_landed_last_counts(repository: Path) -> None:
    assert _tests(repository) == []

    _commit(repository, "protocols/new.py")
    _git(repository, "update-ref", "refs/remotes/origin/main", "HEAD")
    assert _tests(repository) == ALL


def test_without_the_landed_commit_git_cannot_tell(repository: Path) -> None:
    _commit(repository, "docs/page.md")

    assert _tests(repository, landed="origin/unknown") == ALL


def test_a_history_that_is_cut_off_cannot_tell(repository: Path, tmp_path: Path) -> None:
    _commit(repository, "docs/page.md")
    shallow = tmp_path / "shallow"
    _git(tmp_path, "clone", "--quiet", "--depth", "1", repository.as_uri(), str(shallow))

    assert _tests(shallow) == ALL


def test_all_that_it_names_is_there() -> None:
    tables = re.findall(r"\w+=\((.*?)\)", TOOL.read_text(), re.DOTALL)
    named = (
        " ".join(tables)
        .replace("$tests", FOLDER)
        .replace("$tensors", TENSORS)
        .replace('"', "")
        .split()
    )

    assert len(tables) == 2
    assert [path for path in named if not (ROOT / path).exists()] == []


def _tests(folder: Path, landed: str = "") -> list[str]:
    environment = os.environ | {"PDGATE_LANDED": landed}
    done = subprocess.run(
        ["bash", str(TOOL)], check=True, cwd=folder, env=environment, stdout=subprocess.PIPE
    )
    return done.stdout.decode().split()


def _commit(folder: Path, file: str, text: str = "") -> None:
    _write(folder, file, text)
    _git(folder, "add", file)
    who = ("-c", "user.name=Test", "-c", "user.email=test@example.com")
    _git(folder, *who, "commit", "--quiet", "--no-gpg-sign", "-m", f"Add {file}")


def _write(folder: Path, file: str, text: str = "") -> None:
    path = folder / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def _git(folder: Path, *arguments: str) -> None:
    subprocess.run(["git", *arguments], cwd=folder, check=True)
