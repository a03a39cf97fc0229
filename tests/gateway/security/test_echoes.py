"""What the gateway put into a body is not in what a client reads of its refusal."""

import json
from typing import Any

import pytest

from pdgate.gateway.security.echoes import MOST_BYTES, without_echo
from pdgate.protocols.errors import EngineRejected
from pdgate.protocols.instance import Role
from tests.support.fleet import Engine, Gateway, as_json, gateway_of
from tests.support.raw_server import Peer, Script

pytestmark = pytest.mark.usefixtures("front_end")

NOT_ITS_OWN = ("kv_transfer_params", "do_remote", "bootstrap", "max_tokens", "remote_")
MISSING = {"type": "missing", "loc": ["body", "messages"], "msg": "Field required"}


def vllm(body: dict[str, Any]) -> Any:
    """As vLLM told it before it left containers out: Python's own writing, in a sentence."""
    error = {**MISSING, "loc": ("body", "messages"), "input": body}
    return {"error": {"message": f"1 validation error:\n  {error}\n", "code": 400}}


def cut(body: dict[str, Any]) -> Any:
    """The same, and then cut at a length."""
    echo = {"input": body}
    return {"error": {"message": f"1 validation error:\n  {echo}"[:60], "code": 400}}


def fastapi(body: dict[str, Any]) -> Any:
    """FastAPI's own answer, which SGLang's is like."""
    return {"detail": [{**MISSING, "input": body}]}


def refuses(how: Any) -> Script:
    async def script(peer: Peer) -> None:
        await peer.send(as_json(how(json.loads(peer.request.body)), b"400 Bad Request"))

    return script


async def told(gateway: Gateway) -> str:
    answer = await gateway.http.post("/v1/chat/completions", json={"model": "m", "user": "it's {"})
    assert answer.status_code == 400
    return answer.text


@pytest.mark.parametrize("how", [vllm, cut, fastapi])
@pytest.mark.parametrize("protocol", ["vllm-nixl", "vllm-kvt", "sglang"])
async def test_what_the_gateway_added_is_not_shown(how: Any, protocol: str) -> None:
    engines = [Engine(role, refuses(how)) for role in (Role.PREFILL, Role.DECODE)]
    async with gateway_of(*engines, pdd_protocol=protocol) as gateway:
        text = await told(gateway)

    assert "input" in text
    assert [name for name in NOT_ITS_OWN if name in text] == []


def rejected(body: bytes) -> EngineRejected:
    return EngineRejected(400, [(b"content-type", b"application/json")], body, at="p0")


def test_what_is_wrong_stays() -> None:
    body = {"model": "m", "user": "it's {", "kv_transfer_params": {"a": {"b": 'x"}'}}}
    left = json.loads(without_echo(rejected(json.dumps(vllm(body)).encode())).body)

    assert "'msg': 'Field required', 'input': ..." in left["error"]["message"]
    assert left["error"]["code"] == 400


@pytest.mark.parametrize(
    "body",
    [
        b'{"error": {"message": "no such model",  "code": 404}}',
        b'{"detail": [{"msg": "too long", "input": "hot"}]}',
        b"the input: {odd} was wrong",
        b"\xff input",
    ],
)
def test_what_repeats_nothing_is_word_for_word(body: bytes) -> None:
    assert without_echo(rejected(body)).body == body


@pytest.mark.parametrize(
    "body",
    [
        json.dumps(fastapi({"kv_transfer_params": {}, "prompt": "a" * MOST_BYTES})).encode(),
        b'{"input": ' + b"[" * (MOST_BYTES // 2),
        b"{" * 100 + b'"input": {"kv_transfer_params": 1',
    ],
    ids=["long", "deep", "no JSON"],
)
def test_what_cannot_be_read_shows_nothing_either(body: bytes) -> None:
    assert b"kv_transfer_params" not in without_echo(rejected(body)).body
