"""disagg_spec of LMCache's PD backend: prefill pushes a prompt's chunks to decode, and tells the gateway when all are there.

    to prefill    kv_transfer_params {"disagg_spec": {req_id, receiver_host, receiver_init_port, receiver_alloc_port}}
    it says       msgpack {"type": "ProxyNotif", "req_id": ...} over ZeroMQ, from its pd_proxy_host:pd_proxy_port
    to decode     the call as it is: it finds the chunks by its tokens

A port for each tensor-parallel rank of decode, of which prefill's rank takes its own; more than there are do no harm. A decode that
is asked earlier reads what is in the slots: the names are known before the bytes have come. With tensor parallelism each rank of
prefill says so, and the first counts, as in LMCache's own proxy.

Source: LMCache 0.5, lmcache/v1/storage_backend/pd_backend.py (batched_submit_put_task, ProxyNotif, _nixl_worker_loop), integration/vllm/vllm_v1_adapter.py (DisaggSpec).
"""

from typing import Final

import msgspec

from pdgate.protocols.call import Json
from pdgate.protocols.errors import BadRequest
from pdgate.protocols.instance import Instance

FIELD: Final = "kv_transfer_params"
SPEC: Final = "disagg_spec"
INIT_PORT: Final = 7300
ALLOC_BEHIND: Final = 100
"""The allocation port, counted from the first: 7400 in LMCache's examples."""
RANKS: Final = 8


class _Notification(msgspec.Struct, tag="ProxyNotif"):
    req_id: str


_read = msgspec.msgpack.Decoder(_Notification).decode


def notified(message: bytes) -> tuple[str, Json]:
    """The attempt whose KV has been pushed. Raises BadRequest."""
    try:
        return _read(message).req_id, {}
    # A text that is no UTF-8 is a ValueError.
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise BadRequest(f"ProxyNotif expected: {error}") from None


def push_to(decode: Instance, id: str) -> Json:
    host, port = decode.kv_address(INIT_PORT)
    ports = list(range(port, port + RANKS))
    spec = {
        "req_id": id,
        "receiver_host": host,
        "receiver_init_port": ports,
        "receiver_alloc_port": [each + ALLOC_BEHIND for each in ports],
    }
    return {SPEC: spec}
