"""No address of an engine reaches a client, in whatever protocol and however a call ends."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from pdgate.gateway.security.addresses import without_addresses
from pdgate.protocols.errors import EngineRejected
from pdgate.protocols.instance import Instance, Role
from tests.support.fleet import (
    BLOCKS,
    Engine,
    Gateway,
    as_json,
    breaks_off,
    engine_error,
    gateway_of,
    streams,
)
from tests.support.raw_server import Peer, Script

PROTOCOLS: list[dict[str, Any]] = [
    {"pdd_protocol": "vllm-nixl"},
    {"pdd_protocol": "vllm-nixl", "scheduling_mode": "batch"},
    {"pdd_protocol": "vllm-kvt", "scheduling_mode": "batch"},
    {"pdd_protocol": "vllm-kvt", "scheduling_mode": "staged"},
    {"pdd_protocol": "vllm-mooncake", "mooncake_generation": "a"},
    {"pdd_protocol": "vllm-mooncake", "mooncake_generation": "b"},
    {"pdd_protocol": "vllm-mooncake", "mooncake_generation": "d"},
    {"pdd_protocol": "sglang"},
    {"pdd_protocol": "decode-first"},
    {"pdd_protocol": "neuron", "neuron_generation": "zmq"},
    {"pdd_protocol": "neuron", "neuron_generation": "static"},
    {"pdd_protocol": "neuron", "neuron_generation": "nixl"},
]
HIDDEN = "192.0.2.77"
"""Of a KV side that is nobody's host."""


def id_of(peer: Peer) -> str:
    """As vLLM makes it."""
    return f"chatcmpl-{(peer.request.header(b'x-request-id') or b'').decode()}"


async def answers(peer: Peer) -> None:
    """The id is that of the request; prefill also says where its blocks are."""
    choice = {"index": 0, "message": {"content": "a"}, "finish_reason": "length"}
    body: dict[str, Any] = {"id": id_of(peer), "object": "chat.completion", "choices": [choice]}
    if b'"do_remote_decode":true' in peer.request.body:
        body["kv_transfer_params"] = {**BLOCKS, "remote_host": HIDDEN}
    if b'"stream":true' in peer.request.body.replace(b" ", b""):
        delta = {"index": 0, "delta": {"content": "a"}, "finish_reason": "stop"}
        event = {"id": id_of(peer), "object": "chat.completion.chunk", "choices": [delta]}
        await streams(b"data: %b\n\n" % json.dumps(event).encode(), b"data: [DONE]\n\n")(peer)
    else:
        await peer.send(as_json(body))


def complains(status: bytes, engines: list[Engine]) -> Script:
    """Names everybody, as connectors do that cannot reach each other."""

    async def script(peer: Peer) -> None:
        names = ", ".join(engine.url for engine in engines)
        peers = [engine.url.removeprefix("http://") for engine in engines]
        message = f"cannot reach {names} ({peers}, {HIDDEN}:5600, {HIDDEN}) for {id_of(peer)}"
        await peer.send(engine_error(status, message))

    return script


def refused(gateway: Gateway) -> None:
    for engine in gateway.engines:
        engine.refuse()


def script_of(script: Callable[[list[Engine]], Script]) -> Callable[[Gateway], None]:
    def change(gateway: Gateway) -> None:
        for engine in gateway.engines:
            engine.script = script(list(gateway.engines))

    return change


ENDS: dict[str, Callable[[Gateway], None]] = {
    "well": lambda _: None,
    "rejected": script_of(lambda engines: complains(b"400 Bad Request", engines)),
    "failed": script_of(lambda engines: complains(b"500 Internal Server Error", engines)),
    "busy": script_of(lambda engines: complains(b"503 Service Unavailable", engines)),
    "broken off": script_of(lambda _: breaks_off()),
    "refused": refused,
}


@pytest.mark.parametrize("protocol", PROTOCOLS, ids=lambda settings: "-".join(settings.values()))
async def test_no_answer_names_an_engine(protocol: dict[str, Any]) -> None:
    prefill, decode = Engine(Role.PREFILL, answers), Engine(Role.DECODE, answers)
    if protocol.get("mooncake_generation") == "d":
        prefill.bootstraps = True
        known = {"0": {"engine_id": {"0": "engine-of-p"}, "worker_addr": {}}}
        prefill.probes["/query"] = as_json(known)
    else:
        prefill.entry["kv"] = f"{HIDDEN}:5600"
    decode.entry["kv"] = f"{HIDDEN}:5601"
    async with gateway_of(prefill, decode, **protocol) as gateway:
        ports = [engine.url.rpartition(":")[2] for engine in gateway.engines]
        address = re.compile(rf"127\.0\.0\.1|localhost|{HIDDEN}|:(?:{'|'.join(ports)})\b")
        for end, change in ENDS.items():
            change(gateway)
            for asked in ({}, {"stream": True}, {"max_tokens": 1}):
                answer = await gateway.chat(**asked)
                whole = f"{answer.headers}\n{answer.text}"

                assert (address.search(whole), end, asked, whole) == (None, end, asked, whole)
                if end == "well" and not asked:
                    assert answer.status_code == 200
            for path in ("/v1/models", "/ready"):
                answer = await gateway.http.get(path)
                assert not address.search(f"{answer.headers}\n{answer.text}")


P = Instance("p0", "http://10.0.0.1:8100", Role.PREFILL, "vllm-nixl", kv="10.0.0.9:5600")


@pytest.mark.parametrize(
    ("said", "left"),
    [
        ("no route to http://10.0.0.1:8100/v1", "no route to [engine]/v1"),
        ("10.0.0.1:8100 and 10.0.0.9:5600.", "[engine] and [engine]."),
        ("10.0.0.1:9999", "[engine]"),
        ("10.0.0.1.", "[engine]."),
        ("model:8100 and 10.0.0.2", "model:8100 and 10.0.0.2"),
        ("10.0.0.11, 110.0.0.1 and 10.0.0.1.5", "10.0.0.11, 110.0.0.1 and 10.0.0.1.5"),
        ("cmpl-a_10.0.0.1:8100", "cmpl-a_[engine]"),
        ("peer:10.0.0.1:8100", "peer:[engine]"),
        ("...10.0.0.1:8100", "[engine]"),
        (
            "http:10.0.0.1:8100. Or httphttp://10.0.0.1:8100!",
            "http:[engine]. Or httphttp://[engine]!",
        ),
    ],
)
async def test_addresses_go_and_the_rest_stays(said: str, left: str) -> None:
    error = EngineRejected(400, [], said.encode(), at="p0")

    found = await without_addresses(error, [P])

    assert (found.body.decode(), found.answer_status, found.at) == (left, 400, "p0")


async def test_names_go_with_their_port_only() -> None:
    """A host called "model" is also a word."""
    named = replace(P, url="http://model:8100", kv="")
    ipv6 = replace(P, url="http://[2001:db8::1]:8100", kv="")
    body = b"model at model:8100, [2001:db8::1]:8100, 2001:db8::1"

    found = await without_addresses(EngineRejected(400, [], body), [named, ipv6])

    assert found.body == b"model at [engine], [engine], [engine]"
