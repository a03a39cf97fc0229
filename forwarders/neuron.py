"""Forwarders of AWS Neuron's disaggregated inference, in both of its generations.

zmq: both at once, the peer named in the request id (static: the pair knows each other)

client        gateway                     prefill                  decode
  | call ------> | one token, id + D's address -> |                    |
  |              | call, id + P's address ---------------------------> |
  |              |                          | <-- "uid" over ZMQ ----- |
  |              |                          | --- KV, first token ---> |
  | <- 1st token |  <----------- token ---- |                          |
  | <-------------- the other tokens --------------------------------- |

nixl: the successor stack, vLLM with its Neuron plugin; prefill first, as in vllm_nixl.py

Source: AWS Neuron documentation, "Disaggregated Inference" (vLLM V0 fork) and
"Disaggregated Inference - Design Document" (vllm-neuron).
"""

from typing import ClassVar

from pdgate.forwarders.base import Family, Leg, Merge, Mode, Rendezvous, one_token
from pdgate.forwarders.first_token import FirstTokenStream, RenamedAnswer
from pdgate.forwarders.kv_lease import KvRules
from pdgate.forwarders.vllm_nixl import VllmNixl
from pdgate.protocols.call import Call
from pdgate.protocols.dialects import neuron
from pdgate.protocols.dialects.neuron import NIXL, STATIC, ZMQ
from pdgate.protocols.instance import Instance


class Neuron(Rendezvous):
    """Dynamic xPyD: each id names the other side."""

    name: ClassVar = "neuron"
    # The fork keeps the slots of requests that were aborted until it is restarted.
    kv: ClassVar = KvRules()
    hands_first_token: ClassVar = True

    def legs(self, call: Call, prefill: Instance, decode: Instance) -> tuple[Leg, Leg]:
        to_prefill = neuron.names_peer(call.attempt_id, decode)
        to_decode = neuron.names_peer(call.attempt_id, prefill)
        return (
            Leg(prefill, call.path, one_token(call.body), request_id=to_prefill),
            Leg(decode, call.path, call.body, request_id=to_decode),
        )

    def merge(self, call: Call, to_prefill: Leg, to_decode: Leg) -> Merge:
        public = call.attempt_id.encode()
        renames = {leg.request_id.encode(): public for leg in (to_prefill, to_decode)}
        return FirstTokenStream(call, renames) if call.streams else RenamedAnswer(renames)


class NeuronStatic(Neuron):
    """Static 1P1D: the engines know each other, the id is the same for both."""

    def legs(self, call: Call, prefill: Instance, decode: Instance) -> tuple[Leg, Leg]:
        same = f"cmpl-{call.attempt_id}"
        return (
            Leg(prefill, call.path, one_token(call.body), request_id=same),
            Leg(decode, call.path, call.body, request_id=same),
        )


class NeuronNixl(VllmNixl):
    """The plugin in its default mode, read: decode pulls what prefill's answer names."""

    name: ClassVar = "neuron"
    # The plugin has not been seen to hand over what other routes were asked, nor to read ids.
    splits = Rendezvous.splits
    ids_field: ClassVar = ""


NEURON = Family(
    "neuron",
    members={
        (Mode.BATCH, ZMQ): Neuron,
        (Mode.BATCH, STATIC): NeuronStatic,
        (Mode.BATCH, NIXL): NeuronNixl,
        (Mode.STAGED, NIXL): NeuronNixl,
    },
    reasons=dict.fromkeys(
        ((Mode.STAGED, ZMQ), (Mode.STAGED, STATIC)),
        f"{Rendezvous.modes[Mode.STAGED]} (generation {NIXL} can)",
    ),
    default=ZMQ,
)
