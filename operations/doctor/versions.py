"""Which engines pdgate was tested with; docs/operations/doctor.md shows the table."""

from collections.abc import Mapping
from typing import Final

from pdgate import __version__

TESTED: Final[Mapping[str, Mapping[str, str]]] = {
    "vllm": {"0.32": "the CPU build, every test of `make e2e-vllm`"},
    "pdgate": {".".join(__version__.split(".")[:2]): "every test"},
}
"""Kind of engine -> major.minor -> how. SGLang and Neuron were only stood in for."""


def why_untested(kind: str, version: str) -> str:
    """Empty if it was tested, or does not say what it is."""
    if not kind or not version:
        return ""
    tested = TESTED.get(kind)
    if tested is None:
        return f"{kind} {version}: pdgate was not tested with a running {kind}"
    # vLLM's builds end with what they were built for: 0.32.0+cpu.
    if ".".join(version.partition("+")[0].split(".")[:2]) in tested:
        return ""
    return f"{kind} {version}: tested with {', '.join(tested)}"
