"""kv_transfer_params of AMD's MoRI-IO connector: READ, where decode pulls, and WRITE, where prefill writes.

    READ     prefill is asked with `ask`, and its answer goes to decode word for word
    WRITE    both are asked at once, each with the address of the other

Both legs have one transfer_id. The peer's address goes as remote_host, remote_handshake_port and remote_notify_port, and not
in the request id, which clients see: the connector looks there first, and takes the fields otherwise.

Source: vLLM 0.32.0, distributed/kv_transfer/kv_connector/v1/moriio/moriio_common.py (add_new_req, MoRIIOConstants),
moriio_connector.py (request_finished).
"""

from typing import Final

from pdgate.protocols.call import Json
from pdgate.protocols.dialects import handle
from pdgate.protocols.instance import Instance

FIELD: Final = "kv_transfer_params"
HANDSHAKE_PORT, NOTIFY_PORT = 6301, 61005
KEPT_SECONDS: Final = 60.0
"""defer_timeout of the connector."""
READ: Final = ("transfer_id", "remote_engine_id", "remote_block_ids", "remote_host")
_UNKNOWN: Final[Json] = {"remote_engine_id": None, "remote_block_ids": None}


def ask(transfer_id: str) -> Json:
    return {
        "do_remote_decode": True,
        "do_remote_prefill": False,
        **_UNKNOWN,
        "transfer_id": transfer_id,
    }


def kept(reply: Json) -> Json:
    """Fields that say where prefill keeps the blocks. Raise EngineFailed."""
    return handle.found(reply, FIELD, *READ)


def fetch(prefill: Instance, transfer_id: str) -> Json:
    """What the gateway sends decode when prefill writes."""
    asked = {"do_remote_decode": False, "do_remote_prefill": True, **_UNKNOWN}
    return {**asked, "transfer_id": transfer_id, **at(prefill)}


def at(peer: Instance) -> Json:
    host, port = peer.kv_address(HANDSHAKE_PORT)
    found = {"remote_host": host, "remote_handshake_port": port}
    found |= {"remote_notify_port": peer.kv_notify or NOTIFY_PORT, "remote_dp_size": peer.dp_size}
    if peer.tp:
        found["remote_tp_size"] = peer.tp
    if peer.dp_rank is not None:
        found["remote_dp_rank"] = peer.dp_rank
    return found
