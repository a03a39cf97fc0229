"""vllm-router, the router in Rust of the vLLM project, splitting calls as we do."""

from collections.abc import Sequence

from benchmarks.gateway.targets import environment
from benchmarks.gateway.targets.base import Place, Target

VERSION = "0.1.17"


def _command(place: Place) -> Sequence[str]:
    return [
        *(str(place.folder / "bin" / "vllm-router"), "--host", "127.0.0.1"),
        *("--port", str(place.port), "--prometheus-port", str(place.spare_port)),
        *("--vllm-pd-disaggregation", "--prefill", place.prefill, "--decode", place.decode),
        *("--policy", "round_robin", "--log-level", "error"),
    ]


TARGET = Target(
    "vllm-router",
    f"vllm-router {VERSION}, round robin",
    2,
    lambda folder: environment.install(folder, f"vllm-router=={VERSION}"),
    _command,
)
