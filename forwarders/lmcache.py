"""Forwarder of vLLM with LMCache's PD backend: prefill pushes to decode, and decode is asked when all is there.

client        gateway               prefill              decode
  | call ------> | one token, D -----> |                    |
  |              |                     | -- chunks -------> |
  |              | <- ProxyNotif ----- |                    |
  |              | call -----------------------------------> |
  | <---------------- tokens ------------------------------- |

Both are chosen together, as prefill must know where to push. The leg to decode waits for the notification (gateway/callbacks).
"""

from typing import ClassVar

from pdgate.forwarders.base import Awaited, Callback, CallbackPort, Leg, Rendezvous, one_token
from pdgate.forwarders.kv_lease import NOTHING_KEPT
from pdgate.protocols.call import Call
from pdgate.protocols.dialects import lmcache
from pdgate.protocols.instance import Instance


class LMCache(Rendezvous):
    name: ClassVar = "lmcache"
    prefill_can_answer: ClassVar = True
    callback: ClassVar = Callback(CallbackPort.NOTIFICATIONS, lmcache.notified)
    decode_computes: ClassVar = 256
    # What was pushed is decode's, until other chunks need the room.
    kv: ClassVar = NOTHING_KEPT

    def legs(self, call: Call, prefill: Instance, decode: Instance) -> tuple[Leg, Leg]:
        id = call.attempt_id
        params = lmcache.push_to(decode, id)
        return (
            Leg(prefill, call.path, one_token(call.body, **{lmcache.FIELD: params})),
            Leg(decode, call.path, call.body, awaits=Awaited(id, prefill.id)),
        )
