"""The toy proxy (benchmarks/gateway/toy.py), in an environment of its own."""

from collections.abc import Sequence
from pathlib import Path

from benchmarks.gateway.targets import environment
from benchmarks.gateway.targets.base import Place, Target

PROGRAM = Path(__file__).parents[1] / "toy.py"
REQUIREMENTS = ("fastapi==0.165.0", "httpx==0.28.1", "uvicorn[standard]==0.54.0")


def _command(place: Place) -> Sequence[str]:
    python = str(place.folder / "bin" / "python")
    return [python, str(PROGRAM), str(place.port), place.prefill, place.decode]


TARGET = Target(
    "toy",
    f"FastAPI and httpx: {', '.join(REQUIREMENTS)}",
    2,
    lambda folder: environment.install(folder, *REQUIREMENTS),
    _command,
)
