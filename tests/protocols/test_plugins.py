"""Entry points are read once in a process, and again where that could be too old."""

from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import pytest

from pdgate.protocols import plugins


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """How often all packages that are installed were read since the test began."""
    real, seen = metadata.entry_points, []

    def counted() -> object:
        seen.append(1)
        return real()

    monkeypatch.setattr(metadata, "entry_points", counted)
    plugins._declared.cache_clear()
    return lambda: len(seen)


def install(folder: Path) -> None:
    """A package with a policy, as pip would have put it there."""
    info = folder / "pdgate_late-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: pdgate-late\nVersion: 1\n")
    (info / "entry_points.txt").write_text(f"[{plugins.POLICIES}]\nlate = pdgate_late:Late\n")


def test_packages_are_read_once_for_all_groups(reads: Callable[[], int]) -> None:
    found = {group: plugins.names(group) for group in plugins.GROUPS}
    plugins.find(plugins.POLICIES, "policy", "slo")
    plugins.find(plugins.FORWARDERS, "protocol", "vllm-nixl")

    assert reads() == 1
    assert found == {
        group: sorted(metadata.entry_points().select(group=group).names) for group in plugins.GROUPS
    }


def test_another_path_is_read_anew(
    reads: Callable[[], int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    plugins.names(plugins.POLICIES)
    install(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)

    assert "late" in plugins.names(plugins.POLICIES)
    assert reads() == 2


def test_a_package_that_was_installed_since_is_found(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A configuration that names it may be read again without a restart."""
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(LookupError, match="there are"):
        plugins.find(plugins.POLICIES, "policy", "late")

    install(tmp_path)

    assert plugins.find(plugins.POLICIES, "policy", "late").value == "pdgate_late:Late"
