"""kv_transfer_params of vLLM's OffloadingConnector with its P2P tier.

    prefill   {"remote_decoder": {"kv_request_id"}}                                  stores under that id
    decode    {"remote_prefiller": {"kv_request_id", "remote_host", "remote_port"}}  fetches it

Either may come first: what is stored before decode asks is parked STORED_SECONDS, and a late decode is
refused and computes the prompt. The port is that of the tier's control socket, one for each data-parallel
rank, counted from the first.

Source: vLLM 0.32.0, v1/kv_offload/tiering/p2p/manager.py (_parse_source, _parse_dest,
_UNBOUND_STORE_TIMEOUT_S), envs.py (VLLM_P2P_SIDE_CHANNEL_PORT); llm-d-router ebab687, connector_p2p.go.
"""

from typing import Final

from pdgate.protocols.call import Json
from pdgate.protocols.instance import Instance

FIELD: Final = "kv_transfer_params"
STORE, FETCH, ID = "remote_decoder", "remote_prefiller", "kv_request_id"
DEFAULT_PORT: Final = 5710
STORED_SECONDS: Final = 60.0


def store(id: str) -> Json:
    return {STORE: {ID: id}}


def fetch(prefill: Instance, id: str) -> Json:
    host, port = prefill.kv_address(DEFAULT_PORT)
    return {FETCH: {ID: id, "remote_host": host, "remote_port": port + (prefill.dp_rank or 0)}}
