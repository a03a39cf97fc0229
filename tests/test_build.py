"""What a build compiles: as it is told, else what it can, and never nothing at all for want of a compiler."""

import os
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from zipfile import ZipFile

import pytest

pytestmark = pytest.mark.source

ROOT = Path(__file__).parents[1]
FAILS = "raise SystemExit('it does not compile')\n"
WORKS = """\
import pathlib, sys
made = pathlib.Path(sys.argv[2], "pdgate")
made.mkdir(parents=True)
(made / "hot.so").write_bytes(b"")
"""


@pytest.fixture
def hook() -> ModuleType:
    spec = spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(autouse=True)
def can_compile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever this machine has."""
    (tmp_path / "Python.h").touch()
    monkeypatch.setattr(sysconfig, "get_path", lambda _: str(tmp_path))
    monkeypatch.setenv("CC", sys.executable)
    monkeypatch.delenv("PDGATE_COMPILE", raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


class Building:
    """A build of a tree whose compiler is this script."""

    def __init__(self, hook: ModuleType, root: Path, compiler: str) -> None:
        (root / "tools").mkdir()
        (root / "tools" / "compiled.py").write_text(compiler)
        self.data: dict[str, Any] = {"pure_python": True, "force_include": {}}
        self.warned: list[str] = []
        self._hook = hook.Build(
            str(root),
            {},
            SimpleNamespace(target_config={"sources": {}}),
            SimpleNamespace(core=SimpleNamespace(dependencies=["msgspec"])),
            str(root),
            "wheel",
            SimpleNamespace(display_warning=self.warned.append),
        )

    def run(self) -> list[str]:
        """What the wheel has beside the source."""
        self._hook.initialize("standard", self.data)
        self._hook.finalize("standard", self.data, "")
        return list(self.data["force_include"].values())

    @property
    def needs(self) -> list[str]:
        found: list[str] = self._hook.dependencies()
        return found


@pytest.mark.parametrize(
    ("asked", "compiler", "compiles"),
    [
        (None, sys.executable, True),
        ("", sys.executable, True),
        (None, "no-such-compiler", False),
        ("1", "no-such-compiler", True),
        ("0", sys.executable, False),
    ],
)
def test_it_compiles_where_it_can_or_as_it_is_told(
    hook: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    asked: str | None,
    compiler: str,
    compiles: bool,
) -> None:
    monkeypatch.setenv("CC", compiler)
    if asked is not None:
        monkeypatch.setenv("PDGATE_COMPILE", asked)
    building = Building(hook, tmp_path, WORKS)

    assert building.run() == (["pdgate/hot.so"] if compiles else [])
    assert building.data["pure_python"] is not compiles
    assert bool(building.needs) is compiles
    assert not building.warned


def test_without_pythons_headers_it_does_not(hook: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "Python.h").unlink()

    assert Building(hook, tmp_path, WORKS).run() == []


def test_what_cannot_be_compiled_is_installed_as_it_is_with_a_warning(
    hook: ModuleType, tmp_path: Path
) -> None:
    building = Building(hook, tmp_path, FAILS)

    assert building.run() == []
    assert building.data["pure_python"]
    assert building.warned == ["the hot path cannot be compiled here: it will be interpreted"]


def test_who_insists_on_it_gets_an_error(
    hook: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PDGATE_COMPILE", "1")

    with pytest.raises(subprocess.CalledProcessError):
        Building(hook, tmp_path, FAILS).run()


def test_a_wrong_word_is_said_to_be_wrong(
    hook: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PDGATE_COMPILE", "yes")

    with pytest.raises(SystemExit, match="PDGATE_COMPILE is 0, 1 or not there, not 'yes'"):
        Building(hook, tmp_path, WORKS).run()


def test_a_source_distribution_has_each_file_once_and_makes_the_wheel_of_the_checkout(
    tmp_path: Path,
) -> None:
    """Folders at the root are linked to by src/pdgate, so archives could hold them twice."""
    source = _built("sdist", ROOT, tmp_path / "sdist")
    with tarfile.open(source) as packed:
        names = packed.getnames()
        packed.extractall(tmp_path, filter="data")
    unpacked = tmp_path / source.name.removesuffix(".tar.gz")

    assert sorted(names) == sorted(set(names))
    assert [path.name for path in (unpacked / "src" / "pdgate").iterdir() if path.is_dir()] == []
    assert _files(_built("wheel", unpacked, tmp_path / "wheel")) == _files(
        _built("wheel", ROOT, tmp_path / "of_the_checkout")
    )


def _built(kind: str, root: Path, into: Path) -> Path:
    command = [sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", str(into)]
    subprocess.run(command, cwd=root, check=True, env={**os.environ, "PDGATE_COMPILE": "0"})
    (made,) = into.iterdir()
    return made


def _files(wheel: Path) -> dict[str, int]:
    """With their checksums."""
    with ZipFile(wheel) as packed:
        found = {info.filename: info.CRC for info in packed.infolist()}
        assert len(found) == len(packed.infolist())
    return found
