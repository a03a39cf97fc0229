"""pdgate of this checkout with its hot path compiled, in an environment of its own.

It is built and installed anew whenever a source file is another one.
"""

import os
from hashlib import sha256
from pathlib import Path

from benchmarks.gateway.targets import environment, pdgate
from benchmarks.gateway.targets.base import Target

ROOT = Path(__file__).parents[3]
PACKAGES = ("gateway", "forwarders", "protocols", "scheduling", "cluster", "src", "tools")
"""Where what is compiled lies, and what it is compiled with."""


def _install(folder: Path) -> None:
    environment.install(
        folder,
        f"pdgate @ file://{ROOT}#{_state()}",
        environment=os.environ | {"PDGATE_COMPILE": "1"},
    )
    pdgate.write_key(folder)


def _state() -> str:
    """Another one when a source file is."""
    sources = sorted(file for package in PACKAGES for file in (ROOT / package).rglob("*.py"))
    digest = sha256((ROOT / "pyproject.toml").read_bytes())
    for file in sources:
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


TARGET = Target(
    "pdgate-compiled",
    "this checkout, as the first, its hot path compiled",
    2,
    _install,
    lambda place: pdgate.all_on(place, python=str(place.folder / "bin" / "python")),
)
