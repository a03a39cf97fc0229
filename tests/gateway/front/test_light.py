"""What uvicorn waits on and queues in, made as late as can be."""

import asyncio
from typing import cast

from uvicorn.config import Config
from uvicorn.server import ServerState

from pdgate.gateway.front.asgi import Front
from pdgate.gateway.front.hot_protocol import HotProtocol
from pdgate.gateway.front.light import LightFlow, LightPipeline

NOBODY = cast(asyncio.Transport, None)
SHARED_NAMES = 30
"""CPython 3.11 and later share the table of names of objects that have no more attributes."""


async def test_who_waits_goes_on_when_the_client_reads_again() -> None:
    flow = LightFlow(NOBODY)
    await flow.drain()
    flow.pause_writing()
    for _ in ("once", "again"):
        waiting = [asyncio.create_task(flow.drain()) for _ in range(2)]
        await asyncio.sleep(0)
        assert not any(task.done() for task in waiting)
        flow.resume_writing()
        for task in waiting:
            await task
        await flow.drain()
        flow.pause_writing()


def test_requests_leave_in_the_order_in_which_they_came() -> None:
    pipeline = LightPipeline()
    assert not pipeline
    for request in ("first", "second", "third"):
        pipeline.appendleft(request)
    assert [pipeline.pop() for _ in range(3)] == ["first", "second", "third"]


def test_a_connection_has_no_table_of_names_of_its_own() -> None:
    front = Front.__new__(Front)
    config = Config(front, proxy_headers=False, interface="asgi3", log_config=None)
    config.load()
    with asyncio.Runner() as runner:
        loop = runner.get_loop()
        protocol = HotProtocol(config, ServerState(), {}, loop)
    assert len(vars(protocol)) + len({"url"}) <= SHARED_NAMES
