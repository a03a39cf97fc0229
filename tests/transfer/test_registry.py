from importlib.metadata import Distribution, EntryPoints
from pathlib import Path

import pytest

from pdgate.protocols import plugins
from pdgate.transfer import registry


def test_ours_are_declared() -> None:
    assert {"shm", "tcp"} <= set(plugins.names(plugins.TRANSFERS))


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(LookupError, match=r"'smoke'.*shm, tcp"):
        registry.load("smoke")


def declared(monkeypatch: pytest.MonkeyPatch, folder: Path, *targets: str) -> None:
    """As if so many packages declared the backend "smoke"."""
    points = []
    for number, target in enumerate(targets):
        info = folder / f"pack{number}-1.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Name: pack{number}\nVersion: 1\n")
        (info / "entry_points.txt").write_text(f"[{plugins.TRANSFERS}]\nsmoke = {target}\n")
        points += list(Distribution.at(info).entry_points)
    monkeypatch.setattr(plugins, "entry_points", EntryPoints(points).select)


def test_a_name_declared_twice_names_both_packages(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    declared(monkeypatch, tmp_path, "a:A", "b:B")

    with pytest.raises(LookupError, match="pack0, pack1"):
        registry.load("smoke")


def test_what_is_no_backend_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    declared(monkeypatch, tmp_path, "builtins:dict")

    with pytest.raises(TypeError, match="not a Backend"):
        registry.load("smoke")
