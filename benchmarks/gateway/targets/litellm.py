"""LiteLLM's proxy in front of one engine.

Pinned, and not to whatever is newest: 1.107.0 was withdrawn because it had been tampered with.
"""

from collections.abc import Sequence

from benchmarks.gateway.targets import environment
from benchmarks.gateway.targets.base import MODEL, Place, Target

VERSION = "1.101.6"

CONFIGURATION = """
model_list:
  - model_name: {model}
    litellm_params:
      model: hosted_vllm/{model}
      api_base: {engine}/v1
      api_key: none
"""


def _command(place: Place) -> Sequence[str]:
    file = place.folder / "litellm.yaml"
    file.write_text(CONFIGURATION.format(model=MODEL, engine=place.decode), encoding="utf-8")
    return [
        *(str(place.folder / "bin" / "litellm"), "--config", str(file)),
        *("--host", "127.0.0.1", "--port", str(place.port), "--telemetry", "False"),
    ]


TARGET = Target(
    "litellm",
    f"LiteLLM {VERSION}",
    1,
    lambda folder: environment.install(folder, f"litellm[proxy]=={VERSION}"),
    _command,
    # Its prices come with the package; without this it asks for newer ones first.
    environment=(("LITELLM_LOCAL_MODEL_COST_MAP", "True"), ("LITELLM_LOG", "ERROR")),
)
