"""Decode-first delegation: decode gets the call, and any free prefill engine computes its prompt.

client        gateway          decode             queue            prefill
  | call ------> | call -------> |                  |                  |
  |              |               | item ----------> | ---------------> |
  |              |               | <------- claim ------------------- |
  |              |               | prompt --------------------------> |
  |              |               | <------------------- KV by layer -- |
  | <------------ tokens ------- |                  |                  |

Whether a call is worth the queue is decided here, by the gateway's rule, unless decode engines were
started with thresholds of their own: decode asks the queue only if the call asks it to. The prefill engine that execution
reserves stands for all of them: that one is up means that a prefill engine takes from the queue,
and its number of calls is its share of the queue's.
"""

from typing import ClassVar

from pdgate.forwarders.base import Delegation, Leg
from pdgate.protocols.call import Call
from pdgate.protocols.dialects import decode_first
from pdgate.protocols.instance import Instance


class DecodeFirst(Delegation):
    name: ClassVar = "decode-first"

    def leg(self, call: Call, prefill: Instance, decode: Instance) -> Leg:
        body = {**call.body, decode_first.FIELD: decode_first.QUEUED}
        return Leg(decode, call.path, body)
