"""Forwarder of vLLM with Mooncake: prefill writes into decode's blocks.

generation a, and all others when staged      generations b, c, d in batch mode

gateway        prefill        decode          gateway        prefill        decode
  | one token -> |              |               | one token -> |              |
  | <-- answer - |              |               | call + where P is --------> |
  | call + where P is --------> |               |              | <- blocks -- |
  |              | <- blocks -- |               |              | -- writes -> |
  |              | -- writes -> |               | <---------- tokens -------- |
  | <---------- tokens -------- |

In generation a the answer says where P is, word for word; the others learn it from the
gateway, and find each other by request id or transfer id in whatever order they start.
Decode does not learn that prefill failed, and would wait minutes for it; execution
closes decode's leg when prefill's fails.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import ClassVar
from zlib import crc32

from pdgate.forwarders.base import Family, Forwarder, HandOff, Leg, Mode, Rendezvous
from pdgate.forwarders.kv_lease import KvRules
from pdgate.forwarders.prompt import prompt_alone
from pdgate.protocols.apis import RESPONSES
from pdgate.protocols.call import Call, Json
from pdgate.protocols.dialects import mooncake, nixl
from pdgate.protocols.instance import Instance


@dataclass(frozen=True, slots=True)
class Spelling:
    """What a generation tells each side, before either has answered."""

    send: Callable[[Call], Json]
    receive: Callable[[Call, Instance], Json]
    pins_rank: Callable[[Instance], bool] = lambda prefill: False
    """Whether prefill must use the rank whose engine is named to decode."""
    splits: frozenset[str] = Forwarder.splits

    def to_prefill(self, call: Call, prefill: Instance) -> Leg:
        headers = {}
        if self.pins_rank(prefill):
            headers[mooncake.RANK_HEADER] = str(_rank(call, prefill))
        return _read_prompt(call, prefill, self.send(call), headers)

    def to_decode(self, call: Call, prefill: Instance, decode: Instance) -> Leg:
        params = self.receive(call, prefill)
        return Leg(decode, call.path, {**call.body, mooncake.FIELD: params})


def _rank(call: Call, prefill: Instance) -> int:
    """The same for both legs of an attempt, and spread over attempts."""
    return mooncake.rank_of(prefill, turn=crc32(call.attempt_id.encode()))


def _transfer_id(call: Call) -> str:
    """As fresh as the attempt is: a reused one gives wrong tokens."""
    return f"xfer-{call.attempt_id}"


B = Spelling(
    send=lambda call: mooncake.SEND,
    receive=lambda call, prefill: mooncake.receive_b(prefill),
)
C = Spelling(
    send=lambda call: mooncake.SEND,
    receive=lambda call, prefill: mooncake.receive_c(prefill, _rank(call, prefill)),
    pins_rank=lambda prefill: True,
)
D = Spelling(
    send=lambda call: mooncake.send_d(_transfer_id(call)),
    receive=lambda call, prefill: mooncake.receive_d(
        prefill, _rank(call, prefill), _transfer_id(call)
    ),
    pins_rank=lambda prefill: len(prefill.engine_ids) > 1,
    # Responses do not take their id from the header, so they can meet by a transfer id alone.
    # A message can end with its first token, and decode would then wait for KV that is gone.
    splits=Forwarder.splits | {RESPONSES},
)


class MooncakeA(HandOff):
    name: ClassVar = "vllm-mooncake"
    ids_field: ClassVar = mooncake.FIELD
    prefill_can_answer: ClassVar = True
    kv: ClassVar = KvRules(mooncake.KEPT_SECONDS)

    def prefill(self, call: Call, at: Instance) -> Leg:
        return _read_prompt(call, at, mooncake.ASK_A)

    def decode(self, call: Call, prefill: Instance, decode: Instance, reply: Json) -> Leg:
        return Leg(decode, call.path, {**call.body, mooncake.FIELD: nixl.handle(reply)})


class MooncakeBatch(Rendezvous):
    name: ClassVar = "vllm-mooncake"
    prefill_can_answer: ClassVar = True
    kv: ClassVar = KvRules(mooncake.KEPT_SECONDS)

    def __init__(self, spelling: Spelling) -> None:
        self._spelling = spelling
        self.splits = spelling.splits

    def legs(self, call: Call, prefill: Instance, decode: Instance) -> tuple[Leg, Leg]:
        return (
            self._spelling.to_prefill(call, prefill),
            self._spelling.to_decode(call, prefill, decode),
        )


class MooncakeStaged(HandOff):
    name: ClassVar = "vllm-mooncake"
    ids_field: ClassVar = mooncake.FIELD
    prefill_can_answer: ClassVar = True
    kv: ClassVar = KvRules(mooncake.KEPT_SECONDS)

    def __init__(self, spelling: Spelling) -> None:
        self._spelling = spelling
        self.splits = spelling.splits

    def prefill(self, call: Call, at: Instance) -> Leg:
        return self._spelling.to_prefill(call, at)

    def decode(self, call: Call, prefill: Instance, decode: Instance, reply: Json) -> Leg:
        return self._spelling.to_decode(call, prefill, decode)


def _read_prompt(
    call: Call, at: Instance, params: Json, headers: dict[str, str] | None = None
) -> Leg:
    """min_tokens 1: P keeps its blocks only if it stopped by length."""
    least = {} if call.path == RESPONSES else {"min_tokens": 1}
    body = prompt_alone(call, **least, **{mooncake.FIELD: params})
    return Leg(at, call.path, body, headers or {})


VLLM_MOONCAKE = Family(
    "vllm-mooncake",
    members={
        (Mode.BATCH, "a"): MooncakeA,
        (Mode.BATCH, "b"): partial(MooncakeBatch, B),
        (Mode.BATCH, "c"): partial(MooncakeBatch, C),
        (Mode.BATCH, "d"): partial(MooncakeBatch, D),
        (Mode.STAGED, "a"): MooncakeA,
        (Mode.STAGED, "b"): partial(MooncakeStaged, B),
        (Mode.STAGED, "c"): partial(MooncakeStaged, C),
        (Mode.STAGED, "d"): partial(MooncakeStaged, D),
    },
)
