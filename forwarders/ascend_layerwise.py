"""Forwarder of vllm-ascend's layer-wise connector: decode takes its blocks first, and prefill writes into them.

client        gateway                 decode                 prefill
  | call ------> | call + metaserver --> |                      |
  |              | <- POST its blocks -- |                      |
  |              | one token + these blocks ------------------> |
  |              |                       | <--- KV by layer --- |
  | <------------ tokens --------------- |                      |

A metaserver of the gateway's own (gateway/callbacks) hears decode; to prefill that leg waits for it.
"""

from typing import ClassVar

from pdgate.forwarders.base import Awaited, Callback, CallbackPort, Leg, Rendezvous, one_token
from pdgate.forwarders.kv_lease import NOTHING_KEPT
from pdgate.protocols.call import Call, Json
from pdgate.protocols.dialects import ascend_layerwise as ascend
from pdgate.protocols.instance import Instance


class AscendLayerwise(Rendezvous):
    name: ClassVar = "ascend-layerwise"
    prefill_can_answer: ClassVar = True
    callback: ClassVar = Callback(CallbackPort.METASERVER, ascend.posted, ascend.PATH)
    # Prefill writes while it computes, and is done with its answer.
    kv: ClassVar = NOTHING_KEPT

    def legs(self, call: Call, prefill: Instance, decode: Instance) -> tuple[Leg, Leg]:
        body = one_token(call.body, min_tokens=1)

        def to_prefill(posted: Json) -> Json:
            return {**body, ascend.FIELD: posted}

        def to_decode(gateway: str) -> Json:
            receive = {**ascend.RECEIVE, "metaserver": f"{gateway}{ascend.PATH}"}
            return {**call.body, ascend.FIELD: receive}

        awaited = Awaited(call.attempt_id, decode.id, to_prefill)
        return (
            Leg(prefill, call.path, body, awaits=awaited),
            Leg(decode, call.path, call.body, addressed=to_decode),
        )
