"""When the tests on real vLLM are left out before a change lands: tools/vllm_may_differ.sh."""

import os
import re
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.source

ROOT = Path(__file__).parents[1]
TOOL = ROOT / "tools/vllm_may_differ.sh"


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """With one commit that has landed."""
    folder = tmp_path / "repository"
    folder.mkdir()
    _git(folder, "init", "--quiet", "--initial-branch", "work")
    _commit(folder, "forwarders/base.py")
    _git(folder, "update-ref", "refs/remotes/origin/main", "HEAD")
    return folder


@pytest.mark.parametrize(
    "file", ["forwarders/new.py", "engine/vllm/work.py", "gateway/upstream/a.py"]
)
def test_a_change_to_what_they_show_has_them_run(repository: Path, file: str) -> None:
    _commit(repository, file)

    assert _may_differ(repository)


def test_a_change_to_anything_else_leaves_them_out(repository: Path) -> None:
    _commit(repository, "docs/page.md")

    assert not _may_differ(repository)


def test_what_is_not_committed_counts(repository: Path) -> None:
    _commit(repository, "docs/page.md")
    _write(repository, "protocols/new.py")

    assert _may_differ(repository)


def test_what_landed_elsewhere_since_does_not_count(repository: Path) -> None:
    _commit(repository, "docs/page.md")
    _git(repository, "checkout", "--quiet", "-b", "others", "origin/main")
    _commit(repository, "forwarders/theirs.py")
    _git(repository, "update-ref", "refs/remotes/origin/main", "HEAD")
    _git(repository, "checkout", "--quiet", "work")

    assert not _may_differ(repository)


def test_where_nothing_is_there_that_has_not_landed_git_cannot_tell(repository: Path) -> None:
    assert _may_differ(repository)


def test_without_the_landed_commit_git_cannot_tell(repository: Path) -> None:
    _commit(repository, "docs/page.md")

    assert _may_differ(repository, landed="origin/unknown")


def test_a_history_that_is_cut_off_cannot_tell(repository: Path, tmp_path: Path) -> None:
    _commit(repository, "docs/page.md")
    shallow = tmp_path / "shallow"
    _git(tmp_path, "clone", "--quiet", "--depth", "1", repository.as_uri(), str(shallow))

    assert _may_differ(shallow)


def test_all_that_it_names_is_there() -> None:
    (named,) = re.findall(r"shown=\((.*?)\)", TOOL.read_text(), re.DOTALL)

    assert [path for path in named.split() if not (ROOT / path).exists()] == []


def _may_differ(folder: Path, landed: str = "") -> bool:
    environment = os.environ | {"PDGATE_LANDED": landed}
    done = subprocess.run(["bash", str(TOOL)], check=False, cwd=folder, env=environment)
    assert done.returncode in (0, 1)
    return done.returncode == 0


def _commit(folder: Path, file: str) -> None:
    _write(folder, file)
    _git(folder, "add", file)
    who = ("-c", "user.name=Test", "-c", "user.email=test@example.com")
    _git(folder, *who, "commit", "--quiet", "--no-gpg-sign", "-m", f"Add {file}")


def _write(folder: Path, file: str) -> None:
    path = folder / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("")


def _git(folder: Path, *arguments: str) -> None:
    subprocess.run(["git", *arguments], cwd=folder, check=True)
