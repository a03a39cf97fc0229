"""An engine that is paused, gets other weights and sleeps, by HTTP and without a process."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx2
import pytest

from pdgate.engine.api import app
from pdgate.engine.api import control as control_routes
from pdgate.engine.api.service import EngineService
from pdgate.engine.cache.memory import KvMemory
from pdgate.engine.control import EngineControl, why_fixed_weights
from pdgate.engine.core import EngineCore
from pdgate.engine.metrics import EngineMetrics
from pdgate.engine.output_queue import OutputQueue
from tests.support.engine_cores import layout, tiny
from tests.support.waiting import until

PROMPT = {"prompt": "a beginning of more than one block, " * 3, "max_tokens": 6, "temperature": 0}
OTHER = {"model_path": "pdgate-tiny?seed=31"}


@asynccontextmanager
async def engine(why_fixed: str = "") -> AsyncIterator[tuple[httpx2.AsyncClient, EngineCore]]:
    where = layout()
    queue = OutputQueue(asyncio.get_running_loop())
    memory = KvMemory(where, [memoryview(bytearray(where.total_bytes))])
    core = EngineCore(tiny(), where, memory, queue.deliver)
    service = EngineService(core, queue, EngineMetrics(core, None, "tiny"), ("tiny",), 32)
    built = app.build(service, control_routes.routes(EngineControl([service], why_fixed)))
    transport = httpx2.ASGITransport(built)
    core.start()
    try:
        async with httpx2.AsyncClient(transport=transport, base_url="http://engine") as http:
            yield http, core
    finally:
        core.stop()


async def say(http: httpx2.AsyncClient) -> str:
    answer = await http.post("/v1/completions", json=PROMPT)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["choices"][0]["text"])


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/update_weights_from_disk", OTHER),
        ("/update_weights", {"update_info": {"seed": 31}}),
        (
            "/collective_rpc",
            {"method": "reload_weights", "kwargs": {"weights_path": OTHER["model_path"]}},
        ),
    ],
)
async def test_other_weights_answer_otherwise_and_find_no_kv_of_before(
    path: str, body: dict[str, object]
) -> None:
    async with engine() as (http, core):
        before = await say(http)
        assert await say(http) == before
        hits = core.stats.prompts_from_cache
        assert (await http.post(path, json=body)).status_code == 200

        after = await say(http)
        assert after != before
        assert core.stats.prompts_from_cache == hits
        back = {"model_path": "pdgate-tiny"}
        assert (await http.post("/update_weights_from_disk", json=back)).status_code == 200
        assert await say(http) == before


@pytest.mark.parametrize("path", ["/nowhere", "pdgate-tiny?seed=no"])
async def test_weights_that_are_none_change_nothing(path: str) -> None:
    async with engine() as (http, _):
        before = await say(http)
        answer = await http.post("/update_weights_from_disk", json={"model_path": path})
        assert (answer.status_code, answer.json()["success"]) == (400, False)
        assert await say(http) == before


async def test_weights_stay_where_kv_of_others_would_be_found_by_the_same_names() -> None:
    async with engine(why_fixed_weights("store-mediated")) as (http, _):
        answer = await http.post("/update_weights_from_disk", json=OTHER)
        assert answer.status_code == 400
    assert not why_fixed_weights("vllm-nixl")


@pytest.mark.parametrize(
    ("stop", "go_on"),
    [
        ("/pause?mode=wait", "/resume"),
        ("/pause_generation", "/continue_generation"),
        ("/sleep?level=1", "/wake_up"),
        ("/release_memory_occupation", "/resume_memory_occupation"),
    ],
)
async def test_requests_wait_until_a_paused_engine_goes_on(stop: str, go_on: str) -> None:
    async with engine() as (http, core):
        assert (await http.post(stop)).status_code == 200
        assert (await http.get("/is_sleeping")).json() == {"is_sleeping": True}
        waiting = asyncio.create_task(say(http))
        await until(lambda: core._postponed, "a request that waits")
        assert not waiting.done()

        assert (await http.post(go_on)).status_code == 200
        assert await waiting
        assert (await http.get("/is_paused")).json() == {"is_paused": False}


async def test_a_request_that_waits_in_a_paused_engine_ends_with_the_engine() -> None:
    async with engine() as (http, core):
        await http.post("/pause")
        waiting = asyncio.create_task(http.post("/v1/completions", json=PROMPT))
        await until(lambda: core._postponed, "a request that waits")
        core.stop()
        assert (await waiting).json()["choices"][0]["finish_reason"] == "abort"


async def test_what_runs_is_aborted_or_frozen_as_the_mode_says() -> None:
    endless = {**PROMPT, "max_tokens": 1500, "ignore_eos": True}
    async with engine() as (http, core):
        running = asyncio.create_task(http.post("/v1/completions", json=endless))
        await until(lambda: core.gauges.running, "a request that runs")
        assert (await http.post("/pause?mode=keep")).status_code == 200
        # Weights are not changed under it.
        assert (await http.post("/flush_cache")).status_code == 400
        assert (await http.post("/pause?mode=abort")).status_code == 200

        assert (await running).json()["choices"][0]["finish_reason"] == "abort"
        assert (await http.post("/flush_cache")).status_code == 200
