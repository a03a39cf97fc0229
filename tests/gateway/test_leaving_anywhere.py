"""The client leaves: at each point of a call, of each protocol, streamed or not.

prefilling   whoever is asked first has been
held         prefill has answered, decode has been asked
begun        decode's head is here
midstream    the client has had an event
"""

import asyncio
from dataclasses import dataclass, field
from typing import Any

import pytest

from pdgate.protocols.dialects import mooncake
from pdgate.protocols.instance import Role
from tests.gateway.test_leaving import LIMIT_SECONDS, leaves, settled, took
from tests.support.fleet import (
    JSON_TYPE,
    PATIENCE_SECONDS,
    PREFILLED,
    STREAM_HEAD,
    Engine,
    Gateway,
    Held,
    as_json,
    ask,
    gateway_of,
)
from tests.support.ports import free_port
from tests.support.raw_server import chunk
from tests.support.scripted import JOINING

pytestmark = pytest.mark.usefixtures("front_end")

EVENT = b'data: {"choices": [{"index": 0, "delta": {"content": "a"}, "finish_reason": null}]}\n\n'
HALF_ANSWER = b"HTTP/1.1 200 OK\r\n%b\r\ncontent-length: 99\r\n\r\n{" % JSON_TYPE
POINTS = ("prefilling", "held", "begun", "midstream")


@dataclass(frozen=True)
class Kind:
    """How calls cross.

    Attributes:
        asks: Who is asked first.
        bootstraps: Prefill's bootstrap server names an engine.
    """

    asks: tuple[Role, ...]
    settings: dict[str, Any] = field(default_factory=dict)
    bootstraps: bool = False


SERIAL, BOTH, DECODE = (Role.PREFILL,), (Role.PREFILL, Role.DECODE), (Role.DECODE,)
KINDS = {
    "vllm-nixl": Kind(SERIAL),
    "vllm-nixl staged": Kind(SERIAL, {"scheduling_mode": "staged"}),
    "vllm-kvt": Kind(DECODE),
    "vllm-kvt staged": Kind(SERIAL, {"scheduling_mode": "staged"}),
    "vllm-mooncake a": Kind(SERIAL, {"mooncake_generation": "a"}),
    "vllm-mooncake d": Kind(BOTH, bootstraps=True),
    "vllm-mooncake d staged": Kind(SERIAL, {"scheduling_mode": "staged"}, bootstraps=True),
    "sglang": Kind(BOTH),
    "neuron zmq": Kind(BOTH),
    "neuron nixl": Kind(SERIAL, {"neuron_generation": "nixl"}),
    "decode-first": Kind(DECODE),
    "lmdeploy": Kind(SERIAL),
    "mori-io": Kind(SERIAL),
    "offload-p2p": Kind(BOTH),
    "store-mediated": Kind(SERIAL),
    "tensorrt-llm": Kind(SERIAL),
    "tpu staged": Kind(SERIAL, {"scheduling_mode": "staged"}),
    "plain": Kind((Role.PLAIN,)),
}


@pytest.fixture(autouse=True)
def no_bootstrap_server_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mooncake, "BOOTSTRAP_PORT", free_port())


@pytest.mark.parametrize("name", KINDS)
async def test_all_that_was_opened_ends(name: str) -> None:
    kind = KINDS[name]
    at = {role: Held() for role in Role}
    roles = (Role.PLAIN,) if name == "plain" else BOTH
    engines = [Engine(role, at[role]) for role in roles]
    if kind.bootstraps:
        engines[0].bootstraps = True
        engines[0].probes["/query"] = as_json({"0": {"engine_id": "e0"}})
    if name == "lmdeploy":
        for engine in engines:
            engine.probes |= {path: as_json(said) for path, said in JOINING.items()}
    settings = {"pdd_protocol": name.split()[0], **kind.settings}
    async with gateway_of(*engines, **settings) as gateway, asyncio.timeout(PATIENCE_SECONDS):
        for stream in (False, True):
            for point in POINTS[: 4 if stream else 3]:
                if point == "held" and Role.PREFILL not in kind.asks:
                    continue
                await _leaves_at(point, stream, kind, at, gateway)
                await settled(gateway)


async def _leaves_at(
    point: str, stream: bool, kind: Kind, at: dict[Role, Held], gateway: Gateway
) -> None:
    reader, writer = await gateway.wire()
    writer.write(ask(stream=stream))
    calls = {role: await at[role].next() for role in kind.asks}
    if point != "prefilling" and Role.PREFILL in calls:
        prefilling = calls.pop(Role.PREFILL)
        await prefilling.peer.send(as_json(PREFILLED))
        await prefilling.peer.close()
    if point != "prefilling" and not calls:
        calls[Role.DECODE] = await at[Role.DECODE].next()
    if point in ("begun", "midstream"):
        (answering,) = calls.values()
        await answering.peer.send(STREAM_HEAD if stream else HALF_ANSWER)
        if point == "midstream":
            await answering.peer.send(chunk(EVENT))
            await reader.readuntil(b"\n\n")

    left_at = await leaves(writer)
    for role, call in calls.items():
        assert await took(call, left_at) < LIMIT_SECONDS, role
