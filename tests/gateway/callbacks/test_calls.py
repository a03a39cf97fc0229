"""Calls whose legs wait for a word: of decode, where its blocks are; of prefill, that it has pushed."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest
import zmq
import zmq.asyncio

from pdgate.protocols.instance import Role
from tests.gateway.callbacks.test_metaserver import WORD, post
from tests.gateway.callbacks.test_notifications import notif
from tests.support.fleet import (
    ANSWER,
    PATIENCE_SECONDS,
    PREFILLED,
    Engine,
    Gateway,
    Held,
    HeldCall,
    as_json,
    ask,
    gateway_of,
)
from tests.support.ports import free_port
from tests.support.waiting import until


@dataclass
class Fleet:
    gateway: Gateway
    p: Engine
    d: Engine
    prefill: Held
    decode: Held

    async def asked(self) -> tuple[HeldCall, dict[str, Any], dict[str, Any]]:
        """Decode's call, its body, and the word that it would post."""
        call = await self.decode.next()
        body = json.loads(self.d.calls[-1].body)
        attempt = (self.d.calls[-1].header(b"x-request-id") or b"").decode()
        return call, body, {**WORD, "request_id": f"chatcmpl-{attempt}"}

    async def results(self) -> dict[str, float]:
        metrics = await self.gateway.metrics()
        return {
            name[1]: count
            for name, count in metrics.items()
            if name[0] == "pdgate_callbacks_total" and count
        }


@asynccontextmanager
async def fleet(**settings: Any) -> AsyncIterator[Fleet]:
    prefill, decode = Held(), Held()
    p, d = Engine(Role.PREFILL, prefill), Engine(Role.DECODE, decode)
    settings = {"pdd_protocol": "ascend-layerwise", "max_attempts": 1, **settings}
    async with gateway_of(p, d, **settings) as gateway, asyncio.timeout(PATIENCE_SECONDS):
        yield Fleet(gateway, p, d, prefill, decode)


async def say(to_decode: dict[str, Any], word: dict[str, Any]) -> int:
    url = to_decode["kv_transfer_params"]["metaserver"]
    host, _, port = url.removeprefix("http://").partition("/")[0].rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(post(word))
    status = int((await reader.readline()).split()[1])
    writer.close()
    return status


async def test_prefill_is_asked_for_the_blocks_that_decode_names() -> None:
    async with fleet() as site:
        asking = asyncio.create_task(site.gateway.chat(max_tokens=9))
        call, body, word = await site.asked()
        assert body["max_tokens"] == 9
        assert not site.p.calls

        assert await say(body, word) == 200

        prefilling = await site.prefill.next()
        to_prefill = json.loads(site.p.calls[-1].body)
        assert to_prefill["kv_transfer_params"] == word
        assert (to_prefill["max_tokens"], to_prefill["min_tokens"]) == (1, 1)
        ids = {one.header(b"x-request-id") for one in (site.p.calls[-1], site.d.calls[-1])}
        assert len(ids) == 1
        await prefilling.peer.send(as_json(PREFILLED))
        await call.peer.send(as_json(ANSWER))
        assert (await asking).json()["choices"] == ANSWER["choices"]
        assert await say(body, word) == 404
        assert await site.results() == {"taken": 1, "unknown": 1}


MEETS = '''
"""Engines that meet: decode says where it is to a path of its own, in lines."""

from typing import ClassVar

from pdgate.forwarders.base import Awaited, Callback, CallbackPort, Leg, Rendezvous, one_token
from pdgate.protocols.call import Call, Json
from pdgate.protocols.errors import BadRequest
from pdgate.protocols.instance import Instance

PATH = "/meets/here"


def here(body: bytes) -> tuple[str, Json]:
    id, _, at = body.decode().partition(" is at ")
    if not at:
        raise BadRequest("'ID is at PLACE' expected")
    return id, {"place": at}


class Meets(Rendezvous):
    name: ClassVar = "meets"
    callback: ClassVar = Callback(CallbackPort.METASERVER, here, PATH)

    def legs(self, call: Call, prefill: Instance, decode: Instance) -> tuple[Leg, Leg]:
        body = one_token(call.body)
        awaited = Awaited(call.attempt_id, decode.id, lambda said: {**body, "to": said["place"]})
        to_decode = lambda gateway: {**call.body, "say": f"{gateway}{PATH}"}  # noqa: E731
        return (
            Leg(prefill, call.path, body, awaits=awaited),
            Leg(decode, call.path, call.body, addressed=to_decode),
        )
'''


Install = Callable[[str], None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """As pip would have put it there."""
    info = tmp_path / "pdgate_meets-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: pdgate-meets\nVersion: 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "pdgate_meets", raising=False)

    def installed(source: str) -> None:
        (tmp_path / "pdgate_meets.py").write_text(source)
        name = "MEETS" if "Family" in source else "Meets"
        points = f"[pdgate.forwarders]\nmeets = pdgate_meets:{name}\n"
        (info / "entry_points.txt").write_text(points)

    return installed


FAMILY = """

MEETS = Family(
    "meets",
    members={(Mode.BATCH, "ii"): Meets},
    reasons={(Mode.STAGED, "ii"): "decode is asked first"},
    default="ii",
)
"""


@pytest.mark.parametrize(
    "declared", [MEETS, MEETS.replace(" Leg,", " Family, Leg, Mode,") + FAMILY]
)
async def test_a_third_partys_engines_call_back_at_a_path_and_in_words_of_their_own(
    install: Install, declared: str
) -> None:
    install(declared)
    async with fleet(pdd_protocol="meets") as site:
        asking = asyncio.create_task(site.gateway.chat())
        call, body, _ = await site.asked()
        attempt = (site.d.calls[-1].header(b"x-request-id") or b"").decode()
        assert body["say"].endswith("/meets/here")

        async with httpx2.AsyncClient() as engine:
            said = [
                (await engine.post(url, content=word)).status_code
                for url, word in (
                    (body["say"], "nowhere"),
                    (body["say"], b"\xff is no text"),
                    (body["say"], f"another-{attempt} is at rack 7"),
                    (body["say"].replace("/meets/here", "/v1/metaserver"), f"{attempt} is at 8"),
                    (body["say"], f"{attempt} is at rack 7"),
                )
            ]
        assert said == [400, 400, 404, 400, 200]

        prefilling = await site.prefill.next()
        assert json.loads(site.p.calls[-1].body)["to"] == "rack 7"
        await prefilling.peer.send(as_json(PREFILLED))
        await call.peer.send(as_json(ANSWER))
        assert (await asking).status_code == 200


async def test_legs_that_wait_for_what_nobody_hears_are_not_sent(install: Install) -> None:
    """Decode would read KV that is not there yet."""
    install(MEETS.replace("    callback: ClassVar", "    call_back: ClassVar"))
    async with fleet(pdd_protocol="meets") as site:
        assert (await site.gateway.chat()).status_code == 500
        assert site.p.calls == site.d.calls == []


async def test_a_decode_that_does_not_call_back_has_failed() -> None:
    async with fleet(timeouts={"prefill_seconds": 0.3}) as site:
        asking = asyncio.create_task(site.gateway.chat())
        call, _, _ = await site.asked()

        answer = await asking

        assert answer.status_code == 504
        assert "did not call back" in answer.json()["error"]["message"]
        await call.left
        assert not site.p.calls


@pytest.mark.parametrize("protocol", ["lmcache", "ascend-layerwise"])
async def test_engines_that_come_later_and_would_not_be_heard_get_no_calls(protocol: str) -> None:
    """Unheard, LMCache's decode read what was in its slots before prefill had pushed."""
    async with fleet(pdd_protocol="vllm-nixl") as site:
        before = site.gateway.reload.settings
        fleet_ = [one.model_copy(update={"protocol": protocol}) for one in before.instances]
        site.gateway.reload.take(before.model_copy(update={"instances": fleet_}))

        async def ready() -> bool:
            return (await site.gateway.http.get("/ready")).status_code == 200

        await until(ready, "the same engines, of another protocol")

        answer = await site.gateway.chat()

        assert answer.status_code == 501, answer.text
        assert "no port for that since its start" in answer.json()["error"]["message"]
        counted = await site.gateway.http.post("/tokenize", json={"model": "m", "prompt": "hi"})
        assert counted.status_code == 501, counted.text
        site.gateway.reload.take(before.model_copy(update={"instances": fleet_[1:]}))
        assert (await site.gateway.chat()).status_code >= 500, (
            "decode alone does not stand in either"
        )
        assert site.p.calls == site.d.calls == []
        metrics = await site.gateway.metrics()
        held = {
            name: count for name, count in metrics.items() if name[0] == "pdgate_instance_calls"
        }
        assert set(held.values()) == {0}, held


async def test_a_client_that_leaves_is_waited_for_no_more() -> None:
    async with fleet() as site:
        _, writer = await site.gateway.wire()
        writer.write(ask())
        call, body, word = await site.asked()

        writer.transport.abort()
        await call.left

        assert await say(body, word) == 404
        assert not site.p.calls


async def test_a_failed_prefill_ends_decodes_leg() -> None:
    async with fleet() as site:
        asking = asyncio.create_task(site.gateway.chat())
        call, body, word = await site.asked()
        await say(body, word)
        prefilling = await site.prefill.next()

        await prefilling.peer.send(as_json({"error": {"message": "no"}}, b"500 No"))

        assert (await asking).status_code >= 500
        await call.left


async def test_decode_is_asked_when_prefill_has_notified_us() -> None:
    port = free_port()
    settings = {"pdd_protocol": "lmcache", "callbacks": {"notifications": f"127.0.0.1:{port}"}}
    async with fleet(**settings) as site:
        site.d.entry = {"kv": "127.0.0.1:7300"}
        asking = asyncio.create_task(site.gateway.chat())
        prefilling = await site.prefill.next()
        spec = json.loads(site.p.calls[-1].body)["kv_transfer_params"]["disagg_spec"]
        await prefilling.peer.send(as_json(PREFILLED))
        await prefilling.left
        assert not site.d.calls

        context = zmq.asyncio.Context()
        push = context.socket(zmq.PUSH)
        push.connect(f"tcp://127.0.0.1:{port}")
        await push.send(notif(spec["req_id"]))

        call = await site.decode.next()
        assert "kv_transfer_params" not in json.loads(site.d.calls[-1].body)
        await call.peer.send(as_json(ANSWER))
        assert (await asking).status_code == 200
        context.destroy(linger=0)


async def test_a_prefill_that_notifies_nobody_has_failed() -> None:
    settings = {
        "pdd_protocol": "lmcache",
        "callbacks": {"notifications": f"127.0.0.1:{free_port()}"},
        "timeouts": {"prefill_seconds": 0.3},
    }
    async with fleet(**settings) as site:
        asking = asyncio.create_task(site.gateway.chat())
        prefilling = await site.prefill.next()
        await prefilling.peer.send(as_json(PREFILLED))

        answer = await asking

        assert answer.status_code == 504
        assert "did not call back" in answer.json()["error"]["message"]
        assert not site.d.calls


async def test_a_client_that_leaves_before_the_notification_leaves_nothing() -> None:
    port = free_port()
    settings = {"pdd_protocol": "lmcache", "callbacks": {"notifications": f"127.0.0.1:{port}"}}
    async with fleet(**settings) as site:
        _, writer = await site.gateway.wire()
        writer.write(ask())
        prefilling = await site.prefill.next()
        spec = json.loads(site.p.calls[-1].body)["kv_transfer_params"]["disagg_spec"]

        writer.transport.abort()
        await prefilling.left

        context = zmq.asyncio.Context()
        push = context.socket(zmq.PUSH)
        push.connect(f"tcp://127.0.0.1:{port}")
        await push.send(notif(spec["req_id"]))
        # It is another thread that hears it.
        while await site.results() != {"unknown": 1}:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        assert not site.d.calls
        context.destroy(linger=0)
