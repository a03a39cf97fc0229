"""Forwarder of engines that share a store of KV: prefill puts a prompt there, decode finds it by its tokens.

client        gateway            prefill              decode            store
  | call ------> | one token -----> | -- blocks, by hash of their tokens -> |
  |              | <----- done ---- |                    |                  |
  |              | call ------------------------------> | <-- blocks ----- |
  | <------------ tokens ------------------------------- |

No leg has a field of its own, and prefill's answer says nothing: LMCache's multi-process mode, MooncakeStore, FlexKV and
vLLM's ExampleConnector work so. Whether decode found the KV, only its metrics tell.
Source: vLLM 0.32.0, .../kv_connector/v1/{example_connector,lmcache_mp_connector,flexkv_connector}.py: none of them reads
kv_transfer_params or answers any.
"""

from typing import ClassVar

from pdgate.forwarders.base import HandOff, Leg
from pdgate.forwarders.kv_lease import NOTHING_KEPT, KvRules
from pdgate.forwarders.prompt import prompt_alone
from pdgate.protocols.apis import MESSAGES, RESPONSES
from pdgate.protocols.call import CHAT, COMPLETIONS, Call, Json
from pdgate.protocols.instance import Instance


class StoreMediated(HandOff):
    name: ClassVar = "store-mediated"
    prefill_can_answer: ClassVar = True
    splits = frozenset({CHAT, COMPLETIONS, RESPONSES, MESSAGES})
    decode_computes: ClassVar = 256
    """LMCache's chunk; a store of blocks leaves less."""
    kv: ClassVar[KvRules] = NOTHING_KEPT

    def prefill(self, call: Call, at: Instance) -> Leg:
        return Leg(at, call.path, prompt_alone(call))

    def decode(self, call: Call, prefill: Instance, decode: Instance, reply: Json) -> Leg:
        return Leg(decode, call.path, call.body)
