"""Decode gets the call and has its prompt computed by whichever prefill engine is free.

client        gateway          decode             queue            prefill
  | call ------> | call -------> |                  |                  |
  |              |               | item ----------> | ---------------> |
  |              |               | <------- claim ------------------- |
  |              |               | prompt --------------------------> |
  |              |               | <------------------- KV by layer -- |
  | <------------ tokens ------- |                  |                  |

Whether a call is worth the queue is decided here, by the gateway's rule, and nowhere else:
decode is told when it is to compute the prompt itself. The prefill engine that execution
reserves stands for all of them: that one is up means that somebody takes from the queue, and
its number of calls is its share of the queue's.
"""

from typing import ClassVar

from pdgate.forwarders.base import Delegation, Leg
from pdgate.protocols.call import Call
from pdgate.protocols.dialects import kvt
from pdgate.protocols.instance import Instance


class DecodeFirst(Delegation):
    name: ClassVar = "decode-first"

    def leg(self, call: Call, prefill: Instance, decode: Instance) -> Leg:
        return Leg(decode, call.path, call.body)

    def local(self, call: Call, at: Instance) -> Leg:
        # As vllm-kvt spells it, whose decode side this is but for the queue.
        return Leg(at, call.path, {**call.body, kvt.FIELD: kvt.LOCAL})
