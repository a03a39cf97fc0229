"""Forwarder of LMDeploy's DistServe: a pair is joined once, prefill keeps a session's blocks, decode migrates them.

gateway            prefill              decode
  | introduce, connect -> |                |      once for each pair of engines
  | introduce, connect ------------------> |
  | one token ----------> |                |
  | <- blocks, token ---- |                |
  | call + blocks, token ----------------> |
  |                       | <- RDMA, done  |
  | <------------- tokens ---------------- |
  | free ---------------> |                |      only where decode has not come for them
"""

from typing import ClassVar

from pdgate.forwarders.base import HandOff, Joining, Leg, one_token
from pdgate.forwarders.kv_lease import KvRules
from pdgate.protocols.call import Call, Json, Passed
from pdgate.protocols.dialects import lmdeploy
from pdgate.protocols.errors import EngineFailed
from pdgate.protocols.instance import Instance


class LMDeploy(HandOff):
    name: ClassVar = "lmdeploy"
    prefill_can_answer: ClassVar = True
    one_process: ClassVar = True
    own_fields: ClassVar = frozenset({lmdeploy.FIELD, *lmdeploy.ASK})
    kv: ClassVar = KvRules(gateway_frees=True)

    def join(self, prefill: Instance, decode: Instance) -> Joining:
        pair = ((prefill, decode), (decode, prefill))
        configs, said = {}, {}
        for here, _ in pair:
            configs[here.id] = yield Leg(
                here, lmdeploy.INFO, {}, passed=Passed("GET"), read=lmdeploy.unquoted
            )
        if found := lmdeploy.differs(*configs.values()):
            raise EngineFailed(f"its pair is no pair: {found}", at=decode.id)
        for here, peer in pair:
            body = lmdeploy.introduced(here, peer, configs[here.id], configs[peer.id])
            said[here.id] = yield Leg(here, lmdeploy.INITIALIZE, body)
        for here, peer in pair:
            body = lmdeploy.connected(peer, said[peer.id])
            lmdeploy.check((yield Leg(here, lmdeploy.CONNECT, body)), here)

    def prefill(self, call: Call, at: Instance) -> Leg:
        session = lmdeploy.session_of(call.attempt_id)
        return Leg(at, call.path, one_token(call.body, **lmdeploy.ASK, session_id=session))

    def decode(self, call: Call, prefill: Instance, decode: Instance, reply: Json) -> Leg:
        found = lmdeploy.handed(reply, prefill, lmdeploy.session_of(call.attempt_id))
        if found is None:
            # Over with its first token: decode says it, in the client's shape.
            return self.local(call, decode)
        return Leg(decode, call.path, {**call.body, lmdeploy.FIELD: found})

    def release(self, call: Call, prefill: Instance, leg: Leg | None) -> Leg | None:
        if leg is not None and lmdeploy.FIELD in leg.body:
            # Decode tells prefill itself.
            return None
        session = lmdeploy.session_of(call.attempt_id)
        return Leg(prefill, lmdeploy.FREE, lmdeploy.free(prefill, session))
