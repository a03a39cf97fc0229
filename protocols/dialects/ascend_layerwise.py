"""kv_transfer_params of vllm-ascend's layer-wise connector: decode is asked first, and calls the gateway back.

    to decode     RECEIVE and metaserver, the URL at which it says where its blocks are
    it posts      {request_id, do_remote_decode: true, remote_host, remote_port, remote_block_ids, remote_engine_id, ...}
    to prefill    that, word for word; prefill writes each layer into those blocks

The id it posts is vLLM's for the request: chatcmpl-<X-Request-Id>, or cmpl-<X-Request-Id>-<prompt>.

Source: vllm-project/vllm-ascend 182b75e, distributed/kv_transfer/kv_p2p/mooncake_layerwise_connector.py
(update_state_after_alloc); examples/disaggregated_prefill_v1/load_balance_proxy_layerwise_server_example.py.
"""

from typing import Final

from pdgate.protocols.call import Json, Raw, parse_object, value
from pdgate.protocols.errors import BadRequest

FIELD: Final = "kv_transfer_params"
PATH: Final = "/v1/metaserver"
RECEIVE: Final[Json] = {"do_remote_decode": False, "do_remote_prefill": True}
_NULL: Final = Raw(b"null")
_EXPECTED: Final = ("do_remote_decode", "remote_host", "remote_port", "remote_block_ids")


def posted(body: bytes) -> tuple[str, Json]:
    """The attempt that decode speaks of, and all that it says. Raises BadRequest for what is no word of this wire."""
    word = parse_object(body)
    id = value(word, "request_id")
    # Not read: the blocks of a long prompt are more than `value` takes, and decode's own to be right.
    missing = [name for name in _EXPECTED if word.get(name, _NULL) == _NULL]
    if not isinstance(id, str) or missing:
        raise BadRequest(f"request_id, {', '.join(_EXPECTED)} expected")
    if id.startswith("cmpl-"):
        id = id.removeprefix("cmpl-").rpartition("-")[0]
    return id.removeprefix("chatcmpl-"), word
