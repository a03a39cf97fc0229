"""Forwarder of vLLM with Llumnix's KVT transport: prefill pushes into decode's blocks.

batch: decode gets P's address, and asks it itself

client        gateway                          decode              prefill
  | call ------> | call + P's kv address ------> |                    |
  |              |                               | prompt (rpc) ----> |
  |              |                               | <-- KV by layer -- |
  | <------------ tokens ----------------------- |

staged: P computes first and holds; decode asks for it by request id

client        gateway            prefill              decode
  | call ------> | one token -----> |                    |
  |              | <---- done ----- |                    |
  |              | call + P's kv address --------------> |
  |              |                  | <- "push" (rpc) -- |
  | <------------ tokens ------------------------------- |
"""

from typing import ClassVar

from pdgate.forwarders.base import Delegation, Family, HandOff, Leg, Mode, one_token
from pdgate.forwarders.kv_lease import KvRules
from pdgate.protocols.call import Call, Json
from pdgate.protocols.dialects import kvt
from pdgate.protocols.instance import Instance


class _LocalPrefill:
    def local(self, call: Call, at: Instance) -> Leg:
        return Leg(at, call.path, {**call.body, kvt.FIELD: kvt.LOCAL})


class KvtBatch(_LocalPrefill, Delegation):
    name: ClassVar = "vllm-kvt"

    def leg(self, call: Call, prefill: Instance, decode: Instance) -> Leg:
        return Leg(decode, call.path, {**call.body, kvt.FIELD: kvt.peer(prefill)})


class KvtStaged(_LocalPrefill, HandOff):
    name: ClassVar = "vllm-kvt"
    prefill_can_answer: ClassVar = True
    kv: ClassVar = KvRules(kvt.LEASE_SECONDS)

    def prefill(self, call: Call, at: Instance) -> Leg:
        return Leg(at, call.path, one_token(call.body, **{kvt.FIELD: kvt.HOLD}))

    def decode(self, call: Call, prefill: Instance, decode: Instance, reply: Json) -> Leg:
        return Leg(decode, call.path, {**call.body, kvt.FIELD: kvt.held_by(prefill)})


VLLM_KVT = Family("vllm-kvt", members={(Mode.BATCH, ""): KvtBatch, (Mode.STAGED, ""): KvtStaged})
