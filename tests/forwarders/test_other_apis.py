"""How a response is split, what stays whole, and what prefill is asked."""

from typing import Any

import msgspec
import pytest

from pdgate.forwarders import registry
from pdgate.forwarders.base import HandOff, Mode, Rendezvous
from pdgate.forwarders.other_apis import named, why_whole
from pdgate.forwarders.prompt import prompt_alone
from pdgate.protocols import response_id
from pdgate.protocols.apis import APIS, MESSAGES, RESPONSES
from pdgate.protocols.call import Call, encode
from pdgate.protocols.instance import Instance, Role
from tests.support.scripted import call_of

P = Instance("p", "http://p:1", Role.PREFILL, "vllm-mooncake", "d", engine_ids=((0, "e"),))
D = Instance("d", "http://d:1", Role.DECODE, "vllm-mooncake", "d")


def asked(path: str, **fields: Any) -> Call:
    call = call_of(encode({"model": "m", "input": "hi", **fields}), path)
    return msgspec.structs.replace(call, api=APIS[path])


@pytest.mark.parametrize(
    ("name", "mode", "generation", "responses", "messages"),
    [
        ("vllm-nixl", Mode.BATCH, "", None, None),
        ("vllm-mooncake", Mode.BATCH, "d", None, "route"),
        ("vllm-mooncake", Mode.STAGED, "d", None, "route"),
        ("vllm-mooncake", Mode.BATCH, "c", "route", "route"),
        ("vllm-mooncake", Mode.BATCH, "a", "route", "route"),
        ("vllm-kvt", Mode.STAGED, "", "route", "route"),
        ("neuron", Mode.BATCH, "nixl", "route", "route"),
        ("sglang", Mode.BATCH, "", None, "route"),
        ("decode-first", Mode.BATCH, "", "route", "route"),
    ],
)
def test_which_protocols_split_which_routes(
    name: str, mode: Mode, generation: str, responses: str | None, messages: str | None
) -> None:
    forwarder = registry.load(name, mode, generation)

    assert why_whole(forwarder, asked(RESPONSES)) == responses
    assert why_whole(forwarder, asked(MESSAGES)) == messages


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"previous_response_id": "resp_1"}, "stored response"),
        ({"background": True}, "background"),
        ({"background": False, "previous_response_id": None}, None),
        ({"tools": [{"type": "function", "name": "f"}]}, None),
        ({"tools": [{"type": "function"}, {"type": "code_interpreter"}]}, "tools of the engine"),
        ({"tools": "nonsense"}, None),
    ],
)
def test_why_a_response_stays_with_one_engine(fields: dict[str, Any], why: str | None) -> None:
    assert why_whole(registry.load("vllm-nixl", Mode.BATCH), asked(RESPONSES, **fields)) == why


def test_prefill_ends_a_response_by_length_and_keeps_nothing() -> None:
    call = asked(RESPONSES, stop=["a"], stream=True, store=True, request_id="r", top_k=1)

    assert encode(prompt_alone(call, mine=1)) == (
        b'{"model":"m","input":"hi","stream":false,"store":false,"top_k":1,'
        b'"max_output_tokens":1,"ignore_eos":true,"mine":1}'
    )


@pytest.mark.parametrize("mode", Mode)
def test_mooncake_asks_prefill_for_no_least_number_of_tokens_there(mode: Mode) -> None:
    forwarder, call = registry.load("vllm-mooncake", mode, "d"), asked(RESPONSES)
    assert isinstance(forwarder, HandOff | Rendezvous)
    if isinstance(forwarder, Rendezvous):
        leg = forwarder.legs(call, P, D)[0]
    else:
        leg = forwarder.prefill(call, P)

    assert "min_tokens" not in leg.body
    assert leg.body["ignore_eos"] is True
    assert leg.body["kv_transfer_params"]["transfer_id"]


@pytest.mark.parametrize(
    ("fields", "gets_one"),
    [({}, True), ({"store": True}, True), ({"store": False}, False), ({"request_id": "r"}, False)],
)
def test_a_response_gets_an_id_unless_nobody_wants_one(
    fields: dict[str, Any], gets_one: bool
) -> None:
    call = asked(RESPONSES, **fields)
    leg = registry.load("vllm-nixl", Mode.BATCH).local(call, D)
    name = named(leg, call).body.get("request_id")

    if gets_one:
        assert response_id.tags_in(str(name))[0] == response_id.tag("d")
    else:
        assert name == leg.body.get("request_id")
