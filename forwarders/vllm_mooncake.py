"""vLLM with Mooncake: prefill writes into decode's blocks.

generation a: serial, as NIXL is              generations b, c, d: both at once

gateway        prefill        decode          gateway        prefill        decode
  | one token -> |              |               | one token -> |              |
  | <-- params - |              |               | call + where P is --------> |
  | call + params ------------> |               |              | <- blocks -- |
  |              | -- writes -> |               |              | -- writes -> |
  | <---------- tokens -------- |               | <---------- tokens -------- |

In b to d decode does not learn that prefill failed, and waits minutes for it; execution
closes decode's leg when prefill's fails.
"""

from collections.abc import Callable
from typing import ClassVar

from pdgate.forwarders.base import Family, HandOff, Leg, Mode, Rendezvous, one_token
from pdgate.protocols import request_id
from pdgate.protocols.call import Call, Json
from pdgate.protocols.dialects import mooncake, nixl
from pdgate.protocols.instance import Instance


def _read_prompt(call: Call, at: Instance, params: Json, **headers: str) -> Leg:
    body = one_token(call.body, min_tokens=1, **{mooncake.FIELD: params})
    return Leg(at, call.path, body, headers)


class MooncakeA(HandOff):
    name: ClassVar = "vllm-mooncake"

    def prefill(self, call: Call, at: Instance) -> Leg:
        return _read_prompt(call, at, mooncake.ASK_A)

    def decode(self, call: Call, prefill: Instance, decode: Instance, reply: Json) -> Leg:
        return Leg(decode, call.path, {**call.body, mooncake.FIELD: nixl.handle(reply)})


class MooncakeB(Rendezvous):
    name: ClassVar = "vllm-mooncake"

    def legs(self, call: Call, prefill: Instance, decode: Instance) -> tuple[Leg, Leg]:
        body = {**call.body, mooncake.FIELD: mooncake.receive_b(prefill)}
        return _read_prompt(call, prefill, mooncake.SEND), Leg(decode, call.path, body)


class MooncakeC(Rendezvous):
    name: ClassVar = "vllm-mooncake"

    def legs(self, call: Call, prefill: Instance, decode: Instance) -> tuple[Leg, Leg]:
        pinned = {mooncake.RANK_HEADER: str(mooncake.rank_of(prefill))}
        body = {**call.body, mooncake.FIELD: mooncake.receive_c(prefill)}
        return (
            _read_prompt(call, prefill, mooncake.SEND, **pinned),
            Leg(decode, call.path, body),
        )


class MooncakeD(Rendezvous):
    name: ClassVar = "vllm-mooncake"

    def __init__(self, new_id: Callable[[], str] = request_id.new) -> None:
        self._new_id = new_id

    def legs(self, call: Call, prefill: Instance, decode: Instance) -> tuple[Leg, Leg]:
        transfer_id = f"xfer-{self._new_id()}"
        body = {**call.body, mooncake.FIELD: mooncake.receive_d(prefill, transfer_id)}
        return (
            _read_prompt(call, prefill, mooncake.send_d(transfer_id)),
            Leg(decode, call.path, body),
        )


_TOGETHER = Rendezvous.modes[Mode.STAGED]

VLLM_MOONCAKE = Family(
    "vllm-mooncake",
    members={
        (Mode.BATCH, "a"): MooncakeA,
        (Mode.STAGED, "a"): MooncakeA,
        (Mode.BATCH, "b"): MooncakeB,
        (Mode.BATCH, "c"): MooncakeC,
        (Mode.BATCH, "d"): MooncakeD,
    },
    reasons={(Mode.STAGED, generation): _TOGETHER for generation in "bcd"},
)
