"""kv_transfer_params of Llumnix's KVT transport (vLLM's HybridConnector, backend "kvt").

Decode gets P's KVT rpc address, which is not its HTTP port. What it then does
depends on one field:

    batch    {remote_host, remote_port}                    decode sends the prompt to P over
                                                           that rpc; P pushes KV layer by layer
    staged   {remote_host, remote_port, do_remote_prefill} P has the KV already, under the same
                                                           X-Request-Id; decode asks for it

In staged mode P was asked with HOLD first, keeps its blocks for LEASE_SECONDS, and its
answer carries nothing that decode needs. LOCAL makes decode compute the prompt itself.

A failed KV load on decode is HTTP 200 with finish_reason "abort" (protocols/openai.py).

Source: Llumnix v1, HybridConnector and its kvt backend; port from its manifests. vLLM
0.14 and later need VLLM_DISABLE_REQUEST_ID_RANDOMIZATION=1 for staged mode.
"""

from typing import Final

from pdgate.protocols.call import Json
from pdgate.protocols.instance import Instance

FIELD: Final = "kv_transfer_params"
DEFAULT_PORT: Final = 28000
LEASE_SECONDS: Final = 30.0
HOLD: Final[Json] = {"do_remote_decode": True}
LOCAL: Final[Json] = {"do_local_prefill": True}


def peer(prefill: Instance) -> dict[str, object]:
    """Names P to decode; the port is a number, and each data-parallel rank has the next one."""
    host, port = prefill.kv_address(DEFAULT_PORT)
    return {"remote_host": host, "remote_port": port + (prefill.dp_rank or 0)}


def held_by(prefill: Instance) -> dict[str, object]:
    """Names P to decode as the one that holds this request's KV already."""
    return {**peer(prefill), "do_remote_prefill": True}
