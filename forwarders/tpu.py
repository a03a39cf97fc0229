"""Forwarder of vLLM on TPUs: prefill is asked for one token and no more, decode pulls what it names.

client        gateway            prefill              decode
  | call ------> |                  |                    |
  |              | one token -----> |                    |
  |              | <---- blocks --- |  or {}: too short  |
  |              | call + blocks ----------------------> |
  |              |                  | <-- pulls them --- |
  | <------------ tokens ------------------------------- |
"""

from typing import ClassVar

from pdgate.forwarders.base import HandOff, Leg, one_token
from pdgate.forwarders.kv_lease import KvRules
from pdgate.protocols.call import Call, Json
from pdgate.protocols.dialects import tpu
from pdgate.protocols.instance import Instance


class Tpu(HandOff):
    name: ClassVar = "tpu"
    ids_field: ClassVar = tpu.FIELD
    decode_computes: ClassVar = 0
    kv: ClassVar = KvRules(tpu.KEPT_SECONDS)

    def prefill(self, call: Call, at: Instance) -> Leg:
        # It keeps its blocks only if it stopped by length.
        return Leg(at, call.path, one_token(call.body, min_tokens=1))

    def decode(self, call: Call, prefill: Instance, decode: Instance, reply: Json) -> Leg:
        kept = tpu.kept(reply)
        # A prompt under one block, which decode computes.
        body = {**call.body, tpu.FIELD: kept} if kept else call.body
        return Leg(decode, call.path, body)
