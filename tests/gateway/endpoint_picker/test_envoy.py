"""The picker and a real Envoy: what clients are answered, from which engines, and what is left afterwards."""

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest

from pdgate.protocols.call import CHAT
from pdgate.protocols.instance import Role
from tests.support.envoy import envoy_before
from tests.support.ext_proc import QUESTION, at
from tests.support.fleet import ANSWER, Engine, Gateway, Held, as_json, gateway_of, says
from tests.support.inference_pool import PoolOfPods, pool_object, pool_pod
from tests.support.kubernetes import api_server
from tests.support.ports import free_port
from tests.support.processes import child
from tests.support.raw_server import chunk
from tests.support.waiting import PATIENCE_SECONDS, until

pytestmark = pytest.mark.slow

EVENTS = (b'data: {"choices": [{"index": 0, "delta": {"content": "a"}}]}\n\n', b"data: [DONE]\n\n")
STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n"
    # What comes next on it is not for the script of this call.
    b"connection: close\r\n\r\n"
)
LAST = b"0\r\n\r\n"


@dataclass(frozen=True, slots=True)
class Door:
    """
    Attributes:
        http: A client of Envoy's.
        gateway: The picker's process, which is this one.
    """

    http: httpx2.AsyncClient
    gateway: Gateway

    async def chat(self, **fields: Any) -> httpx2.Response:
        return await self.http.post(CHAT, json={**QUESTION, **fields})

    async def is_idle(self) -> bool:
        return (await self.gateway.metrics())["pdgate_calls_in_flight",] == 0


@asynccontextmanager
async def door(
    folder: Path, *engines: Engine, buffered: bool = False, **settings: Any
) -> AsyncIterator[Door]:
    port = free_port()
    async with gateway_of(*engines, epp=at(port), **settings) as gateway:
        urls = [engine.url.removeprefix("http://") for engine in engines]
        with envoy_before(port, urls, folder, buffered=buffered) as envoy:
            async with httpx2.AsyncClient(
                base_url=envoy.url, trust_env=False, timeout=PATIENCE_SECONDS
            ) as http:
                yield Door(http, gateway)


async def test_envoy_sends_calls_to_the_engines_that_are_picked_and_streams_their_answers(
    tmp_path: Path,
) -> None:
    prefill, decode = Engine(Role.PREFILL), Engine(Role.DECODE, held := Held())
    async with door(tmp_path, prefill, decode) as at_door:
        # A whole body of several pieces, and an answer that comes piece by piece.
        content = "x" * 200_000
        request = at_door.http.stream(
            "POST",
            CHAT,
            json={**QUESTION, "messages": [{"role": "user", "content": content}], "stream": True},
            headers={"x-prefiller-host-port": "192.0.2.1:80"},
        )
        opening = asyncio.create_task(request.__aenter__())
        call = await held.next()
        named = call.peer.request.header(b"x-prefiller-host-port")
        assert named is not None
        assert f"http://{named.decode()}" == prefill.url
        assert json.loads(call.peer.request.body)["messages"][0]["content"] == content
        await call.peer.send(STREAM_HEAD, chunk(EVENTS[0]))
        answer = await opening
        pieces = answer.aiter_bytes()
        assert await anext(pieces) == EVENTS[0]
        assert not await at_door.is_idle()
        await call.peer.send(chunk(EVENTS[1]), LAST)
        assert b"".join([piece async for piece in pieces]) == EVENTS[1]
        await request.__aexit__(None, None, None)
        await until(at_door.is_idle, "a call that has ended")

        # A client that leaves in the middle.
        leaving = asyncio.create_task(at_door.chat(stream=True))
        call = await held.next()
        leaving.cancel()
        await until(at_door.is_idle, "engines that are free")

        # A refusal of ours is the client's answer.
        wrong = await at_door.http.post(CHAT, content=b'{"model": "other"}')
        assert wrong.status_code == 404
        assert wrong.json()["error"]["code"] == "model_not_found"

        # No body: any engine will do, and which one says itself.
        models = await at_door.http.get("/v1/models")
        assert models.json()["data"][0]["id"] == "m"


async def test_envoy_goes_on_to_the_next_engine_of_the_list_and_buffered_bodies_do(
    tmp_path: Path,
) -> None:
    bad = Engine(Role.PLAIN, says(as_json({"error": {}}, b"503 Service Unavailable")))
    good = Engine(Role.PLAIN, says(as_json(ANSWER)))
    async with door(tmp_path, bad, good, buffered=True, plain_policy="round_robin") as at_door:
        answers = [await at_door.chat() for _ in range(4)]

        assert [one.status_code for one in answers] == [200] * 4
        assert bad.calls
        await until(at_door.is_idle, "calls that have ended")


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.matrix)])
async def test_the_command_finds_the_pods_of_a_pool_serves_envoy_by_tls_and_ends_when_calls_have(
    workers: int, tmp_path: Path
) -> None:
    """Several workers share the port. A call whose objective gives way does not wait for room."""
    engine = Engine(Role.PLAIN, held := Held())
    port, http = free_port(), free_port()
    async with gateway_of(engine):
        at_pod = engine.url.removeprefix("http://")
        host, engine_port = at_pod.split(":")
        with api_server() as server:
            pods = [pool_pod("one", host, {})]
            cluster = PoolOfPods(server, pool_object([int(engine_port)]), pods)
            cluster.objectives = {"rest": (-1, "pool")}
            options = (f"url={server.url}", "namespace=llm")
            command = [
                *(sys.executable, "-m", "pdgate", "epp", "--pool", "pool"),
                *(f"--directory-option={option}" for option in options),
                *("--epp-listen", f"127.0.0.1:{port}", "--port", str(http)),
                *("--workers", str(workers), "--decode-concurrency", str(workers)),
            ]
            with (
                child(command) as picker,
                envoy_before(port, [at_pod], tmp_path, tls=True) as envoy,
            ):
                await asyncio.to_thread(picker.wait_for_http, f"http://127.0.0.1:{http}/ready")
                async with httpx2.AsyncClient(
                    base_url=envoy.url, trust_env=False, timeout=PATIENCE_SECONDS
                ) as client:
                    asking = [
                        asyncio.create_task(client.post(CHAT, json=QUESTION))
                        for _ in range(workers)
                    ]
                    calls = [await held.next() for _ in range(workers)]
                    await until(lambda: gives_way(client), "a call that does not wait")
                    picker.process.send_signal(signal.SIGTERM)
                    await asyncio.to_thread(picker.wait_for_line, "no new calls from now on; [1-9]")
                    for call in calls:
                        await call.peer.send(as_json(ANSWER))
                    assert [one.status_code for one in await in_order(asking)] == [200] * workers
                    assert await asyncio.to_thread(picker.wait_for_end) in (0, -15)


async def gives_way(client: httpx2.AsyncClient) -> bool:
    headers = {"x-gateway-inference-objective": "rest"}
    try:
        async with asyncio.timeout(1):
            return (await client.post(CHAT, json=QUESTION, headers=headers)).status_code == 429
    except TimeoutError:
        # The objectives had not been read, so it waited as others do; it has left.
        return False


async def in_order(asking: list[asyncio.Task[httpx2.Response]]) -> list[httpx2.Response]:
    return [await one for one in asking]
