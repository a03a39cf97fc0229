"""Forwarder of vllm-ascend's layer-wise connector: decode takes its blocks first, and prefill writes into them.

client        gateway                 decode                 prefill
  | call ------> | call + metaserver --> |                      |
  |              | <- POST its blocks -- |                      |
  |              | one token + these blocks ------------------> |
  |              |                       | <--- KV by layer --- |
  | <------------ tokens --------------- |                      |

A metaserver of the gateway's own (gateway/callbacks) hears decode; to prefill that leg waits for it. In kv_transfer_params:

    to decode     RECEIVE and metaserver, the URL at which it says where its blocks are
    it posts      {request_id, do_remote_decode: true, remote_host, remote_port, remote_block_ids, remote_engine_id, ...}
    to prefill    that, word for word; prefill writes each layer into those blocks

The id it posts is vLLM's for the request: chatcmpl-<X-Request-Id>, or cmpl-<X-Request-Id>-<prompt>.

Source: vllm-project/vllm-ascend 182b75e, distributed/kv_transfer/kv_p2p/mooncake_layerwise_connector.py
(update_state_after_alloc); examples/disaggregated_prefill_v1/load_balance_proxy_layerwise_server_example.py.
"""

from typing import ClassVar, Final

from pdgate.forwarders.base import Awaited, Callback, CallbackPort, Leg, Rendezvous, one_token
from pdgate.forwarders.kv_lease import NOTHING_KEPT
from pdgate.protocols.call import Call, Json, Raw, parse_object, value
from pdgate.protocols.errors import BadRequest
from pdgate.protocols.instance import Instance

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


class AscendLayerwise(Rendezvous):
    name: ClassVar = "ascend-layerwise"
    prefill_can_answer: ClassVar = True
    callback: ClassVar = Callback(CallbackPort.METASERVER, posted, PATH)
    # Prefill writes while it computes, and is done with its answer.
    kv: ClassVar = NOTHING_KEPT

    def legs(self, call: Call, prefill: Instance, decode: Instance) -> tuple[Leg, Leg]:
        body = one_token(call.body, min_tokens=1)

        def to_prefill(said: Json) -> Json:
            return {**body, FIELD: said}

        def to_decode(gateway: str) -> Json:
            return {**call.body, FIELD: {**RECEIVE, "metaserver": f"{gateway}{PATH}"}}

        awaited = Awaited(call.attempt_id, decode.id, to_prefill)
        return (
            Leg(prefill, call.path, body, awaits=awaited),
            Leg(decode, call.path, call.body, addressed=to_decode),
        )
