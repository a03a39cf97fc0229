"""smg, the gateway in Rust that came of sglang-router, in front of one engine.

Its own way of splitting is SGLang's, in which both engines get the whole call; so that every
gateway is asked the same, it only relays here.
"""

from collections.abc import Sequence

from benchmarks.gateway.targets import environment
from benchmarks.gateway.targets.base import Place, Target

VERSION = "1.13.0"


def _command(place: Place) -> Sequence[str]:
    return [
        *(str(place.folder / "bin" / "smg"), "launch", "--host", "127.0.0.1"),
        *("--port", str(place.port), "--prometheus-port", str(place.spare_port)),
        *("--worker-urls", place.decode, "--policy", "round_robin", "--log-level", "error"),
    ]


TARGET = Target(
    "smg",
    f"smg {VERSION}, round robin",
    1,
    lambda folder: environment.install(folder, f"smg=={VERSION}"),
    _command,
)
