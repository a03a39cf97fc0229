"""Forwarder of vLLM with the OffloadingConnector's P2P tier: decode fetches what prefill stores.

client        gateway                prefill              decode
  | call ------> | one token, id ------> |                    |
  |              | call, id + where P is ------------------> |
  |              |                      | <---- fetch id ---- |
  |              |                      | -- stored blocks -> |
  | <---------------- tokens ------------------------------- |
"""

from typing import ClassVar

from pdgate.forwarders.base import Leg, Rendezvous, one_token
from pdgate.forwarders.kv_lease import KvRules
from pdgate.protocols.call import Call
from pdgate.protocols.dialects import offload_p2p
from pdgate.protocols.instance import Instance


class OffloadP2p(Rendezvous):
    name: ClassVar = "offload-p2p"
    prefill_can_answer: ClassVar = True
    decode_computes: ClassVar = 0
    kv: ClassVar = KvRules(offload_p2p.STORED_SECONDS)

    def legs(self, call: Call, prefill: Instance, decode: Instance) -> tuple[Leg, Leg]:
        id = call.attempt_id
        store, fetch = offload_p2p.store(id), offload_p2p.fetch(prefill, id)
        return (
            Leg(prefill, call.path, one_token(call.body, **{offload_p2p.FIELD: store})),
            Leg(decode, call.path, {**call.body, offload_p2p.FIELD: fetch}),
        )
