"""vLLM's own MooncakeConnector, able to start on a machine without an accelerator.

Named as `kv_connector_module_path`. Two things of vLLM 0.32.0,
vllm/distributed/kv_transfer/kv_connector/v1/mooncake/mooncake_connector.py, are in the way:

- it asks torch for the current accelerator, which raises where there is none;
- its bootstrap server binds 0.0.0.0. Mooncake's data ports do so too and cannot be told
  otherwise, so the pair belongs in a network namespace all the same.
"""

from typing import Any

import torch

if not torch.accelerator.is_available():
    torch.accelerator.current_device_index = lambda: 0

from vllm.distributed.kv_transfer.kv_connector.v1.mooncake import (  # type: ignore[import-not-found]
    mooncake_connector,
)

LOOPBACK = "127.0.0.1"

_Server: Any = mooncake_connector.MooncakeBootstrapServer


class _LoopbackServer(_Server):  # type: ignore[misc]
    def __init__(self, host: str, port: int) -> None:
        super().__init__(LOOPBACK, port)


mooncake_connector.MooncakeBootstrapServer = _LoopbackServer


class MooncakeConnector(mooncake_connector.MooncakeConnector):  # type: ignore[misc]
    """Under the name that `kv_connector` gives."""
