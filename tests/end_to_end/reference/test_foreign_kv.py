"""The negative control: decode handed another call's KV gives another answer.

Without it, equal answers could mean that decode quietly computed the prompt itself.
"""

from typing import Any

import httpx2
import pytest

from pdgate.forwarders import registry
from pdgate.forwarders.base import HandOff, Leg, Mode, Rendezvous
from pdgate.protocols.call import COMPLETIONS, Call, encode, parse_object
from pdgate.protocols.dialects import mooncake
from pdgate.protocols.instance import Instance, Role
from tests.end_to_end.reference.fleet import HTTP, Fleet, Pair

OURS = "my own prompt, which is exactly as long as the foreign one"
FOREIGN = "what someone else asked, which is as long as my own prompt"
ONE_WAY = [
    ("vllm-nixl", Mode.STAGED, ""),
    ("vllm-kvt", Mode.STAGED, ""),
    *(("vllm-mooncake", Mode.STAGED, generation) for generation in "abcd"),
    ("sglang", Mode.BATCH, ""),
    ("neuron", Mode.BATCH, ""),
]


def call(prompt: str, attempt: str) -> Call:
    body = {"model": "pdgate-tiny", "prompt": prompt, "max_tokens": 8, "temperature": 0}
    return Call(attempt, attempt, COMPLETIONS, parse_object(encode(body)), model="pdgate-tiny")


def post(leg: Leg, call: Call) -> httpx2.Response:
    headers = {"x-request-id": leg.request_id or call.attempt_id, **leg.headers}
    url = f"{leg.to.url}{leg.path}"
    content = encode(leg.body)
    return HTTP.post(url, content=content, headers={**headers, "content-type": "application/json"})


def crossed(pair: Pair, mode: Mode, generation: str, prompt: str, at_decode: str, id: str) -> str:
    """Decode's text, when prefill was asked for `prompt` and decode for `at_decode`."""
    forwarder = registry.load(pair.protocol, mode, generation)
    p, d = instances(pair)
    asked = call(prompt, id)
    match forwarder:
        case HandOff():
            reply = parse_object(post(forwarder.prefill(asked, p), asked).content)
            leg = forwarder.decode(asked, p, d, reply)
        case Rendezvous():
            to_prefill, leg = forwarder.legs(asked, p, d)
            post(to_prefill, asked).raise_for_status()
        case _:
            raise AssertionError(forwarder)
    body = {**leg.body, "prompt": at_decode}
    answer: Any = post(Leg(leg.to, leg.path, body, leg.headers, leg.request_id), asked).json()
    assert "choices" in answer, answer
    return str(answer["choices"][0]["text"])


def instances(pair: Pair) -> tuple[Instance, Instance]:
    engine_ids: tuple[tuple[int, str], ...] = ()
    if pair.protocol == "vllm-mooncake":
        engine_ids = mooncake.engine_ids(HTTP.get(f"http://{pair.prefill.kv}/query").json())
    return (
        Instance(
            "p", pair.prefill.url, Role.PREFILL, pair.protocol, kv=pair.prefill.kv,
            engine_ids=engine_ids,
        ),
        Instance("d", pair.decode.url, Role.DECODE, pair.protocol, kv=pair.decode.kv),
    )  # fmt: skip


@pytest.mark.parametrize(("protocol", "mode", "generation"), ONE_WAY)
def test_foreign_kv_changes_the_answer(
    fleet: Fleet, protocol: str, mode: Mode, generation: str
) -> None:
    assert len(OURS) == len(FOREIGN)
    pair = fleet.pair(protocol, "shm")
    # A prompt that decode has seen is in its cache, so each row has prompts of its own.
    row = f"{protocol} {mode} {generation}"
    ours, foreign, other = f"{row}? {OURS}", f"{row}? {FOREIGN}", f"{row}! {OURS}"

    assert crossed(pair, mode, generation, other, other, f"{row[:9]}{generation}-1") == single(
        fleet, other
    )
    assert crossed(pair, mode, generation, foreign, ours, f"{row[:9]}{generation}-2") != single(
        fleet, ours
    )


def single(fleet: Fleet, prompt: str) -> str:
    asked = call(prompt, "single")
    leg = Leg(Instance("s", fleet.single().url, Role.PLAIN, "plain"), COMPLETIONS, asked.body)
    return str(post(leg, asked).json()["choices"][0]["text"])
