"""HTTP/1.1 as clients speak it: kept, pipelined, chunked, expecting, large."""

import asyncio
import json

import pytest

from pdgate.gateway.front import limits
from pdgate.protocols.call import CHAT
from pdgate.protocols.instance import Role
from tests.support import fleet
from tests.support.fleet import (
    ANSWER,
    JSON_TYPE,
    PATIENCE_SECONDS,
    Engine,
    as_json,
    ask,
    gateway_of,
    question,
    says,
    streams,
)
from tests.support.raw_server import Peer

pytestmark = pytest.mark.usefixtures("front_end")

EVENTS = (b'data: {"choices": [{"text": "a", "finish_reason": "stop"}]}\n\n', b"data: [DONE]\n\n")


async def connects_again_and_again(gateway: fleet.Gateway) -> None:
    while True:
        await gateway.wire()


async def read_answer(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    """Status line and body of one answer."""
    head = await reader.readuntil(b"\r\n\r\n")
    status, *lines = head.lower().split(b"\r\n")
    headers = dict(line.split(b": ", 1) for line in lines if line)
    if b"content-length" in headers:
        return status, await reader.readexactly(int(headers[b"content-length"]))
    body = b""
    while length := int(await reader.readline(), 16):
        body += await reader.readexactly(length)
        await reader.readline()
    await reader.readline()
    return status, body


async def test_one_connection_serves_call_after_call() -> None:
    decode = Engine(Role.DECODE)
    whole, stream = decode.script, streams(*EVENTS)
    async with gateway_of(Engine(Role.PREFILL), decode) as gateway:
        reader, writer = await gateway.wire()
        async with asyncio.timeout(PATIENCE_SECONDS):
            for number in range(20):
                decode.script = stream if number % 2 else whole
                writer.write(ask(stream=bool(number % 2)))
                status, body = await read_answer(reader)

                assert status == b"http/1.1 200 ok"
                assert body == (b"".join(EVENTS) if number % 2 else json.dumps(ANSWER).encode())
            writer.write(b"GET /health HTTP/1.1\r\nhost: g\r\n\r\n")
            assert (await read_answer(reader))[1] == b'{"status":"ok"}'
            decode.script = whole
            writer.write(ask())
            assert (await read_answer(reader))[0] == b"http/1.1 200 ok"


async def test_an_error_keeps_the_connection() -> None:
    async with gateway_of(Engine(Role.PLAIN)) as gateway, asyncio.timeout(PATIENCE_SECONDS):
        reader, writer = await gateway.wire()
        for _ in range(3):
            writer.write(ask(model="other"))
            assert (await read_answer(reader))[0] == b"http/1.1 404 not found"
            writer.write(ask())
            assert (await read_answer(reader))[0] == b"http/1.1 200 ok"


# Another server says nothing to them.
@pytest.mark.parametrize("front_end", ["hot"], indirect=True)
async def test_who_came_just_before_the_end_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its request may be on its way, and without an answer nobody knows what became of it."""
    # A machine that is busy elsewhere for a quarter of a second is not to end the test's own connection.
    monkeypatch.setattr(limits, "FAREWELL_SECONDS", 2.0)
    async with gateway_of(Engine(Role.PLAIN)) as gateway, asyncio.timeout(PATIENCE_SECONDS):
        reader, writer = await gateway.wire()
        assert (await gateway.http.get("/health")).status_code == 200
        gateway.leaving.set()
        with pytest.raises(ConnectionRefusedError):
            await connects_again_and_again(gateway)

        writer.write(b"GET /health HTTP/1.1\r\nhost: g\r\n\r\n")
        assert (await read_answer(reader))[0] == b"http/1.1 200 ok"
        assert await reader.read() == b""


async def test_pipelined_calls_are_answered_in_order() -> None:
    async def echo(peer: Peer) -> None:
        await peer.send(
            as_json(
                {
                    "choices": [{"finish_reason": "stop"}],
                    "tag": json.loads(peer.request.body)["tag"],
                }
            )
        )

    async with gateway_of(Engine(Role.PLAIN, echo)) as gateway, asyncio.timeout(PATIENCE_SECONDS):
        reader, writer = await gateway.wire()
        writer.write(b"".join(ask(tag=number) for number in range(5)))
        for number in range(5):
            status, body = await read_answer(reader)

            assert (status, json.loads(body)["tag"]) == (b"http/1.1 200 ok", number)


# uvicorn's own connections answer 400 to both.
@pytest.mark.parametrize("front_end", ["hot"], indirect=True)
async def test_a_good_request_before_nonsense_is_answered_and_is_the_last_one() -> None:
    async with gateway_of(Engine(Role.PLAIN)) as gateway, asyncio.timeout(PATIENCE_SECONDS):
        reader, writer = await gateway.wire()
        writer.write(ask() + b"nonsense\r\n\r\n")

        assert (await read_answer(reader))[0] == b"http/1.1 200 ok"
        assert not await reader.read()


async def test_a_client_that_expects_is_told_to_go_on() -> None:
    head, _, body = ask(b"expect: 100-continue").partition(b"\r\n\r\n")
    async with gateway_of(Engine(Role.PLAIN)) as gateway, asyncio.timeout(PATIENCE_SECONDS):
        reader, writer = await gateway.wire()
        writer.write(head + b"\r\n\r\n")
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(body)

        assert (await read_answer(reader))[0] == b"http/1.1 200 ok"


async def test_a_body_may_come_in_any_pieces() -> None:
    body = json.dumps(question()).encode()
    head = b"POST %b HTTP/1.1\r\nhost: g\r\n%b\r\ntransfer-encoding: chunked\r\n\r\n"
    async with gateway_of(Engine(Role.PLAIN)) as gateway, asyncio.timeout(PATIENCE_SECONDS):
        reader, writer = await gateway.wire()
        for size in (1, 7, len(body)):
            writer.write(head % (CHAT.encode(), JSON_TYPE))
            for start in range(0, len(body), size):
                piece = body[start : start + size]
                writer.write(b"%x;ext=1\r\n%b\r\n" % (len(piece), piece))
                await writer.drain()
            writer.write(b"0\r\ntrailer: x\r\n\r\n")

            assert (await read_answer(reader))[0] == b"http/1.1 200 ok"
        assert {json.dumps(found) for found in gateway.engines[0].bodies} == {body.decode()}


async def test_a_large_body_arrives_whole() -> None:
    """4 MB, as images in a chat are."""
    image = "A" * (4 << 20)
    async with gateway_of(Engine(Role.PREFILL), Engine(Role.DECODE)) as gateway:
        answer = await gateway.chat(image=image)

        assert answer.status_code == 200
        assert [engine.bodies[0]["image"] == image for engine in gateway.engines] == [True, True]


# uvicorn's own connections send it chunks, which it takes for the answer.
@pytest.mark.parametrize("front_end", ["hot"], indirect=True)
async def test_an_old_client_is_served_too() -> None:
    """HTTP/1.0 knows no chunks: the end of the connection ends the answer."""
    request = ask(stream=True).replace(b"HTTP/1.1", b"HTTP/1.0", 1)
    plain = Engine(Role.PLAIN, streams(*EVENTS))
    async with gateway_of(plain) as gateway, asyncio.timeout(PATIENCE_SECONDS):
        reader, writer = await gateway.wire()
        writer.write(request)
        said = await reader.read()

        head, _, body = said.partition(b"\r\n\r\n")
        assert body == b"".join(EVENTS)
        assert b"transfer-encoding" not in head
        assert b"\r\nconnection: close" in head


async def test_an_idle_connection_is_closed_but_not_one_in_use(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    keep_seconds = 1
    monkeypatch.setattr(fleet, "KEEP_ALIVE_SECONDS", keep_seconds)
    go_on = asyncio.Event()

    async def slow(peer: Peer) -> None:
        await go_on.wait()
        await as_json_answer(peer)

    as_json_answer = says(as_json(ANSWER))
    engines = Engine(Role.PREFILL), Engine(Role.DECODE, slow)
    async with gateway_of(*engines) as gateway, asyncio.timeout(PATIENCE_SECONDS):
        loop = asyncio.get_running_loop()
        reader, writer = await gateway.wire()
        for waited_seconds in (0, keep_seconds * 1.5):
            go_on.clear()
            writer.write(ask())
            loop.call_later(waited_seconds, go_on.set)
            status, _ = await read_answer(reader)
            assert status.endswith(b"200 ok")
        answered = loop.time()

        assert await reader.read() == b""
        # The loop's clock is a little coarse.
        assert loop.time() - answered > keep_seconds * 0.98
