"""Forwarders of vLLM with MoRI-IO, in its two modes, which are set at the engines.

read: prefill first, and decode pulls              write: both at once, prefill writes by layer

gateway        prefill        decode               gateway        prefill        decode
  | one token -> |              |                    | one token, where D is ---> |
  | <-- blocks - |              |                    | call, where P is --------> |
  | call + blocks ------------> |                    |              | <- blocks -- |
  |              | <-- RDMA --- |                    |              | -- RDMA ---> |
  | <---------- tokens -------- |                    | <---------- tokens -------- |
"""

from typing import ClassVar

from pdgate.forwarders.base import Family, HandOff, Leg, Mode, Rendezvous, one_token
from pdgate.forwarders.kv_lease import KvRules
from pdgate.protocols.call import Call, Json
from pdgate.protocols.dialects import mori_io as mori
from pdgate.protocols.instance import Instance


def _transfer_id(call: Call) -> str:
    return f"tx-{call.attempt_id}"


class Read(HandOff):
    name: ClassVar = "mori-io"
    ids_field: ClassVar = mori.FIELD
    prefill_can_answer: ClassVar = True
    kv: ClassVar = KvRules(mori.KEPT_SECONDS)

    def prefill(self, call: Call, at: Instance) -> Leg:
        params = mori.ask(_transfer_id(call))
        # It keeps its blocks only if it stopped by length.
        return Leg(at, call.path, one_token(call.body, min_tokens=1, **{mori.FIELD: params}))

    def decode(self, call: Call, prefill: Instance, decode: Instance, reply: Json) -> Leg:
        return Leg(decode, call.path, {**call.body, mori.FIELD: mori.kept(reply)})


class MoriIoWrite(Rendezvous):
    name: ClassVar = "mori-io"
    prefill_can_answer: ClassVar = True
    kv: ClassVar = KvRules(mori.KEPT_SECONDS)

    def legs(self, call: Call, prefill: Instance, decode: Instance) -> tuple[Leg, Leg]:
        id = _transfer_id(call)
        to_prefill = {mori.FIELD: {**mori.ask(id), **mori.at(decode)}}
        to_decode = {mori.FIELD: mori.fetch(prefill, id)}
        return (
            Leg(prefill, call.path, one_token(call.body, min_tokens=1, **to_prefill)),
            Leg(decode, call.path, {**call.body, **to_decode}),
        )


MORI_IO = Family(
    "mori-io",
    members={
        (Mode.BATCH, "read"): Read,
        (Mode.STAGED, "read"): Read,
        (Mode.BATCH, "write"): MoriIoWrite,
    },
    reasons={(Mode.STAGED, "write"): Rendezvous.modes[Mode.STAGED]},
    default="read",
)
