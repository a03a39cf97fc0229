"""A wheel whose name promises another Python or platform than its modules are for is found."""

import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from zipfile import ZipFile

import pytest

pytestmark = pytest.mark.source

TOOL = Path(__file__).parents[1] / "tools" / "wheel_tag.py"
HOT = "pdgate/hot.cpython-313-x86_64-linux-gnu.so"


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = spec_from_file_location("wheel_tag", TOOL)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def wheel(folder: Path, tag: str, said: str, pure: str, *modules: str) -> Path:
    path = folder / f"pdgate-0.1.0-{tag}.whl"
    with ZipFile(path, "w") as packed:
        packed.writestr(
            "pdgate-0.1.0.dist-info/WHEEL",
            f"Wheel-Version: 1.0\nRoot-Is-Purelib: {pure}\nTag: {said}\n",
        )
        for module in ("pdgate/hot.py", *modules):
            packed.writestr(module, b"")
    return path


@pytest.mark.parametrize(
    ("tag", "pure", "modules"),
    [("py3-none-any", "true", []), ("cp313-cp313-linux_x86_64", "false", [HOT])],
)
def test_what_is_right_passes(
    tool: ModuleType, tmp_path: Path, tag: str, pure: str, modules: list[str]
) -> None:
    assert tool.complaints(wheel(tmp_path, tag, tag, pure, *modules)) == []


@pytest.mark.parametrize(
    ("tag", "said", "pure", "modules"),
    [
        ("py3-none-any", "py3-none-any", "true", [HOT]),
        ("py3-none-any", "py3-none-any", "false", [HOT]),
        ("cp313-cp313-linux_x86_64", "cp313-cp313-linux_x86_64", "true", []),
        ("cp313-cp313-linux_x86_64", "cp313-cp313-linux_x86_64", "true", [HOT]),
        ("cp313-cp313-linux_x86_64", "py3-none-any", "false", [HOT]),
        ("cp311-cp311-linux_x86_64", "cp311-cp311-linux_x86_64", "false", [HOT]),
        ("cp313-cp313-linux_aarch64", "cp313-cp313-linux_aarch64", "false", [HOT]),
    ],
)
def test_what_is_wrong_is_found(
    tool: ModuleType, tmp_path: Path, tag: str, said: str, pure: str, modules: list[str]
) -> None:
    assert tool.complaints(wheel(tmp_path, tag, said, pure, *modules))


def test_it_is_a_command(tmp_path: Path) -> None:
    path = wheel(tmp_path, "py3-none-any", "py3-none-any", "true", HOT)
    ran = subprocess.run(
        [sys.executable, str(TOOL), str(path)], capture_output=True, text=True, check=False
    )

    assert ran.returncode == 1
    assert "is of CPython 313" in ran.stderr
