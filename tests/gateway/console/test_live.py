"""The picture tells where each call is, for who knows the token and for nobody else."""

import asyncio
from pathlib import Path

import httpx2
import pytest

from pdgate.gateway.admin import live
from pdgate.protocols.instance import Role
from tests.gateway.console.watching import (
    KNOWN,
    LIVE,
    Picture,
    gateway_with_console,
    one_with,
    picture_of,
    pictures,
)
from tests.support.fleet import (
    LAST_CHUNK,
    PATIENCE_SECONDS,
    PREFILLED,
    STREAM_HEAD,
    Engine,
    Held,
    as_json,
    gateway_of,
    says,
)
from tests.support.raw_server import chunk, reply

EVENT = b'data: {"choices": [{"index": 0, "delta": {"content": "a"}, "finish_reason": "stop"}]}\n\n'


def phases(picture: Picture) -> list[str]:
    return [call["phase"] for call in picture["calls"]["running"]]


async def test_without_an_admin_token_there_is_no_console() -> None:
    async with gateway_of(Engine(Role.PLAIN)) as gateway:
        for path in (LIVE, "/console", "/console/", "/admin/calls/x"):
            assert (await gateway.http.get(path)).status_code == 404, path


async def test_it_can_be_switched_off(tmp_path: Path) -> None:
    async with gateway_with_console(tmp_path, Engine(Role.PLAIN), console=False) as gateway:
        for path in (LIVE, "/console/", "/admin/calls/x"):
            assert (await gateway.http.get(path, headers=KNOWN)).status_code == 404, path


async def test_who_does_not_know_the_token_sees_nothing(tmp_path: Path) -> None:
    async with gateway_with_console(tmp_path, Engine(Role.PLAIN)) as gateway:
        await gateway.chat({"x-request-id": "mine"})
        for headers in ({}, {"authorization": "Bearer wrong"}):
            for path in (LIVE, "/admin/calls/mine"):
                answer = await gateway.http.get(path, headers=headers)
                assert (answer.status_code, answer.json()["error"]["type"]) == (
                    401, "authentication_error",
                )  # fmt: skip


async def test_a_call_is_seen_from_prefill_to_its_end(tmp_path: Path) -> None:
    reading, answering = Held(), Held()
    engines = Engine(Role.PREFILL, reading), Engine(Role.DECODE, answering)
    async with (
        gateway_with_console(tmp_path, *engines) as gateway,
        pictures(gateway.http) as told,
        asyncio.TaskGroup() as group,
    ):
        asking = group.create_task(gateway.chat({"x-request-id": "mine"}, stream=True))
        prefill = await reading.next()
        seen = await one_with(told, lambda one: phases(one) == ["prefill"])
        assert seen["calls"]["running"][0]["id"] == "mine"
        assert [one["role"] for one in seen["instances"]] == ["prefill", "decode"]
        assert seen["instances"][0]["calls"] == 1

        await prefill.peer.send(as_json(PREFILLED))
        decode = await answering.next()
        seen = await one_with(told, lambda one: phases(one) == ["crossing"])
        call = seen["calls"]["running"][0]
        assert (call["prefill"], call["decode"]) == ("prefill-0", "decode-0")
        assert (seen["kv"]["held"], seen["in_flight"]) == (1, 1)

        await decode.peer.send(STREAM_HEAD, chunk(EVENT))
        seen = await one_with(told, lambda one: phases(one) == ["answering"])
        assert seen["kv"]["held"] == 0

        await decode.peer.send(chunk(b"data: [DONE]\n\n"), LAST_CHUNK)
        assert (await asking).status_code == 200
        seen = await one_with(told, lambda one: not one["calls"]["running"])
        call = seen["calls"]["ended"][0]
        assert (call["id"], call["outcome"], call["kv"], call["path"]) == (
            "mine", "ok", True, "disaggregated",
        )  # fmt: skip
        assert call["started"] <= call["ended"] <= seen["at"]
        assert call["first_byte_ms"] > 0


async def test_kv_that_nobody_came_for_is_told_with_its_engine(tmp_path: Path) -> None:
    failing = says(reply(b"", b"500 Internal Server Error"))
    engines = Engine(Role.PREFILL), Engine(Role.DECODE, failing)
    async with gateway_with_console(tmp_path, *engines, max_attempts=1) as gateway:
        assert (await gateway.chat()).status_code >= 500
        seen = await picture_of(gateway)

    assert seen["kv"]["stranded"] == {"prefill-0": 1}
    assert [one["stranded"] for one in seen["instances"]] == [1, 0]
    assert seen["calls"]["ended"][0]["outcome"] not in ("ok", "running")


async def test_latencies_and_ends_are_in_the_chart(tmp_path: Path) -> None:
    engines = Engine(Role.PREFILL), Engine(Role.DECODE)
    async with gateway_with_console(tmp_path, *engines) as gateway, pictures(gateway.http) as told:
        await gateway.chat()
        seen = await one_with(told, lambda one: bool(one["chart"]["points"]))

    point = seen["chart"]["points"][-1]
    low, middle, high = point["ttft_ms"]
    assert 0 < low <= middle <= high
    assert point["ok"] * seen["chart"]["slot_seconds"] == 1
    assert (point["failed"], point["gone"]) == (0, 0)
    assert 0 <= seen["at"] - point["at"] < PATIENCE_SECONDS


async def test_the_record_of_a_call_needs_no_debug_routes(tmp_path: Path) -> None:
    engines = Engine(Role.PREFILL), Engine(Role.DECODE)
    async with gateway_with_console(tmp_path, *engines) as gateway:
        await gateway.chat({"x-request-id": "mine"})
        found = (await gateway.http.get("/admin/calls/mine", headers=KNOWN)).json()
        unknown = await gateway.http.get("/admin/calls/gone", headers=KNOWN)
        debug = await gateway.http.get("/debug/calls/mine", headers=KNOWN)

    assert (found["id"], found["kv"], found["outcome"]) == ("mine", "handed_over", "ok")
    assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "not_found")
    assert debug.status_code == 404


async def test_what_people_wrote_is_in_no_picture(tmp_path: Path) -> None:
    reading = Held()
    engines = Engine(Role.PREFILL, reading), Engine(Role.DECODE)
    async with gateway_with_console(tmp_path, *engines) as gateway, asyncio.TaskGroup() as group:
        secret = [{"role": "user", "content": "a-secret-of-mine"}]
        asking = group.create_task(gateway.chat({"x-request-id": "mine"}, messages=secret))
        prefill = await reading.next()
        seen = str(await picture_of(gateway))
        record = (await gateway.http.get("/admin/calls/mine", headers=KNOWN)).text
        await prefill.peer.send(as_json(PREFILLED))
        await asking

    assert "mine" in seen
    assert "a-secret-of-mine" not in seen + record


async def test_a_gateway_that_ends_waits_for_no_one_who_watches(tmp_path: Path) -> None:
    async with gateway_with_console(tmp_path, Engine(Role.PLAIN)) as gateway:
        gateway.drain.notice_seconds = 2
        async with pictures(gateway.http) as told:
            await one_with(told, lambda _: True)
            gateway.drain.begin()
            await one_with(told, lambda one: bool(one["draining"]))
            async with asyncio.timeout(PATIENCE_SECONDS):
                async for _ in told:
                    pass


async def test_so_many_may_watch_and_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "MAX_WATCHERS", 1)
    async with gateway_with_console(tmp_path, Engine(Role.PLAIN)) as gateway:
        async with pictures(gateway.http) as told:
            await one_with(told, lambda _: True)
            second = await gateway.http.get(LIVE, headers=KNOWN)
            assert (second.status_code, second.json()["error"]["code"]) == (
                429, "rate_limit_exceeded",
            )  # fmt: skip
        # Who leaves makes room, as soon as the gateway has seen it.
        async with asyncio.timeout(PATIENCE_SECONDS):
            while await _status(gateway.http) == 429:
                pass


async def _status(http: httpx2.AsyncClient) -> int:
    async with http.stream("GET", LIVE, headers=KNOWN) as answer:
        return answer.status_code
