"""Forwarders of TensorRT-LLM: context first, or generation first, where both meet by an id.

Context first, what prefill has answered goes to decode, token and ids included; else an id, and where prefill is.
"""

from typing import ClassVar

from pdgate.forwarders.base import Family, HandOff, Introduction, Leg, Mode, Rendezvous
from pdgate.forwarders.kv_lease import KvRules
from pdgate.protocols.call import CHAT, Call, Json, Raw
from pdgate.protocols.dialects import tensorrt_llm as trt
from pdgate.protocols.instance import Instance


def _prefill(call: Call, at: Instance, style: int) -> Leg:
    """A context server stops behind the first token by itself. `style`: 0 is context first."""
    params = {"request_type": "context_only", "disagg_request_id": trt.id_of(call.attempt_id)}
    asked = {**call.body, "stream": False, trt.FIELD: {**params, "schedule_style": style}}
    asked.pop("stream_options", None)
    return Leg(at, call.path, asked)


class ContextFirst(HandOff):
    name: ClassVar = "tensorrt-llm"
    kv: ClassVar = KvRules(trt.KEPT_SECONDS)

    def prefill(self, call: Call, at: Instance) -> Leg:
        return _prefill(call, at, 0)

    def decode(self, call: Call, prefill: Instance, decode: Instance, reply: Json) -> Leg:
        params = trt.handed(reply, trt.id_of(call.attempt_id))
        if params is None:
            # Over with its first token, so nothing is kept: decode says it, in the client's shape.
            return self.local(call, decode)
        body = {**call.body, trt.FIELD: params}
        if (ids := reply.get(trt.TOKENS)) not in (None, Raw(b"null")):
            body[trt.TOKENS if call.path == CHAT else "prompt"] = ids
        return Leg(decode, call.path, body)


class GenerationFirst(Rendezvous):
    name: ClassVar = "tensorrt-llm"
    kv: ClassVar = KvRules(trt.KEPT_SECONDS)
    introduction: ClassVar = Introduction("/server_info", trt.endpoint)

    def legs(self, call: Call, prefill: Instance, decode: Instance) -> tuple[Leg, Leg]:
        params = trt.expect(trt.id_of(call.attempt_id), prefill)
        to_decode = Leg(decode, call.path, {**call.body, trt.FIELD: params})
        return _prefill(call, prefill, 1), to_decode


TENSORRT_LLM = Family(
    "tensorrt-llm",
    members={
        (Mode.BATCH, "context-first"): ContextFirst,
        (Mode.STAGED, "context-first"): ContextFirst,
        (Mode.BATCH, "generation-first"): GenerationFirst,
    },
    reasons={(Mode.STAGED, "generation-first"): Rendezvous.modes[Mode.STAGED]},
    default="context-first",
)
