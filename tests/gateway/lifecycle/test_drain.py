"""Who asks while the gateway ends is sent elsewhere; who is being answered is answered."""

import asyncio

import pytest

from pdgate.gateway.lifecycle.drain import Drain
from pdgate.protocols.instance import Role
from tests.support.fleet import (
    LAST_CHUNK,
    PATIENCE_SECONDS,
    STREAM_HEAD,
    Engine,
    Held,
    ask,
    gateway_of,
)
from tests.support.raw_server import chunk

EVENT, DONE = (
    b'data: {"choices": [{"text": "a", "finish_reason": "stop"}]}\n\n',
    b"data: [DONE]\n\n",
)


class Clocked:
    def __init__(self, grace_seconds: float, notice_seconds: float = 0.0) -> None:
        self.now, self.calls = 100.0, 1
        self.drain = Drain(lambda: self.calls, grace_seconds, notice_seconds, lambda: self.now)

    def over_after(self, seconds: float) -> bool:
        self.now += seconds
        return self.drain.over


async def test_it_is_over_when_the_last_call_is() -> None:
    it = Clocked(grace_seconds=30)
    it.calls = 0
    assert not it.over_after(100)

    it.calls = 1
    it.drain.begin()
    assert not it.over_after(29)
    it.calls = 0
    assert it.over_after(0)


async def test_calls_have_their_time_and_no_more() -> None:
    it = Clocked(grace_seconds=30)
    it.drain.begin()
    assert not it.over_after(29.9)
    # Asking again gives no more time.
    it.drain.begin()

    assert it.over_after(0.2)


async def test_whoever_routes_traffic_has_time_to_notice() -> None:
    it = Clocked(grace_seconds=30, notice_seconds=5)
    it.calls = 0
    it.drain.begin()

    assert not it.over_after(4.9)
    assert it.over_after(0.2)


async def test_it_finishes_once_when_nothing_runs() -> None:
    finished = asyncio.Event()
    drain = Drain(lambda: 0, grace_seconds=30)
    drain.finish = finished.set
    drain.begin()

    async with asyncio.timeout(PATIENCE_SECONDS):
        await finished.wait()


@pytest.mark.usefixtures("front_end")
async def test_new_calls_go_elsewhere_while_a_stream_ends_well() -> None:
    held = Held()
    async with gateway_of(Engine(Role.PLAIN, held)) as gateway:
        finished = asyncio.Event()
        gateway.drain.finish = finished.set
        asking = asyncio.create_task(gateway.chat(stream=True))
        call = await held.next()
        await call.peer.send(STREAM_HEAD, chunk(EVENT))
        assert (await gateway.http.get("/ready")).status_code == 200

        gateway.drain.begin()

        ready = await gateway.http.get("/ready")
        assert (ready.status_code, ready.json()["draining"]) == (503, True)
        refused = await gateway.chat()
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "draining")
        assert refused.headers["retry-after"] == "1"
        assert (await gateway.http.get("/health")).status_code == 200
        assert not finished.is_set()

        await call.peer.send(chunk(EVENT), chunk(DONE), LAST_CHUNK)
        assert (await asking).content == EVENT + EVENT + DONE
        async with asyncio.timeout(PATIENCE_SECONDS):
            await finished.wait()


@pytest.mark.usefixtures("front_end")
async def test_who_is_sent_elsewhere_does_not_come_again_by_the_same_connection() -> None:
    async with gateway_of(Engine(Role.PLAIN)) as gateway:
        gateway.drain.begin()
        reader, writer = await gateway.wire()
        writer.write(ask())
        async with asyncio.timeout(PATIENCE_SECONDS):
            answer = await reader.read()

        assert answer.startswith(b"HTTP/1.1 503 ")
        assert b"\r\nconnection: close\r\n" in answer.lower()
