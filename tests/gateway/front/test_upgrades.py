"""Requests for another protocol, such as those of Java's HttpClient for h2c: answered as if they had not asked (RFC 9110, section 7.8)."""

import asyncio
import gc
import json
from collections.abc import Callable

import pytest

from pdgate.gateway.front.asgi_cycle import AsgiCycle
from pdgate.gateway.front.hot_protocol import HotProtocol
from pdgate.protocols.call import CHAT
from pdgate.protocols.instance import Role
from tests.support.fleet import (
    ANSWER,
    JSON_TYPE,
    PATIENCE_SECONDS,
    Engine,
    Held,
    as_json,
    ask,
    gateway_of,
    question,
)
from tests.support.waiting import until

H2C = b"Connection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: AAEAAEAAAAIAAAABAAMAAABk\r\nUpgrade: h2c\r\n"
"""Of each plaintext connection's first request, by JDK 21."""
TLS = b"Connection: upgrade\r\nUpgrade: TLS/1.2\r\n"

GOOD = json.dumps(question(user="u" * 30)).encode()
SMUGGLED = ask(b"x-session-id: smuggled")
"""A whole request, which hides in a body or behind one."""


def by_length(body: bytes) -> bytes:
    return b"content-length: %d\r\n\r\n%b" % (len(body), body)


def by_chunks(body: bytes) -> bytes:
    half = len(body) // 2
    chunks = [b"%x\r\n%b\r\n" % (len(part), part) for part in (body[:half], body[half:])]
    return b"transfer-encoding: chunked\r\n\r\n" + b"".join(chunks) + b"0\r\n\r\n"


Framing = Callable[[bytes], bytes]
framings = pytest.mark.parametrize("framed", [by_length, by_chunks])


def asking_for_more(framed: bytes, more: bytes = H2C, path: str = CHAT) -> bytes:
    return b"POST %b HTTP/1.1\r\nhost: g\r\n%b\r\n%b" % (path.encode(), JSON_TYPE, more) + framed


async def answer_on(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    lengths = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
    return head + await reader.readexactly(int(lengths[0].partition(b":")[2]))


@pytest.mark.parametrize("more", [H2C, TLS])
@framings
async def test_its_body_is_read_and_its_connection_kept(framed: Framing, more: bytes) -> None:
    async with gateway_of(Engine(Role.PLAIN)) as gateway, asyncio.timeout(PATIENCE_SECONDS):
        reader, writer = await gateway.wire()
        for _ in range(2):
            writer.write(asking_for_more(framed(GOOD), more))

            assert (await answer_on(reader)).startswith(b"HTTP/1.1 200 ")
        writer.write(ask())
        assert (await answer_on(reader)).startswith(b"HTTP/1.1 200 ")
        first, second, _ = gateway.engines[0].bodies
        assert first == second == json.loads(GOOD)


@framings
async def test_its_body_may_come_later(framed: Framing) -> None:
    """Behind its head, which is served before, and in pieces."""
    request = asking_for_more(framed(GOOD))
    head = request.index(b"\r\n\r\n") + 4
    async with gateway_of(Engine(Role.PLAIN)) as gateway, asyncio.timeout(PATIENCE_SECONDS):
        reader, writer = await gateway.wire()
        for end in (head, head + 9, len(request) - 1, len(request)):
            writer.write(request[:end])
            request = request[end:]
            # Behind that, on the same event loop, it has been read.
            assert (await gateway.http.get("/health")).status_code == 200

        assert (await answer_on(reader)).startswith(b"HTTP/1.1 200 ")
        assert gateway.engines[0].bodies == [json.loads(GOOD)]


async def test_a_large_body_is_read_in_slices_as_any() -> None:
    body = json.dumps(question(user="u" * 200_000)).encode()
    async with gateway_of(Engine(Role.PLAIN)) as gateway, asyncio.timeout(PATIENCE_SECONDS):
        for framed in (by_length, by_chunks):
            reader, writer = await gateway.wire()
            writer.write(asking_for_more(framed(body)))

            assert (await answer_on(reader)).startswith(b"HTTP/1.1 200 ")
        assert gateway.engines[0].bodies == [json.loads(body)] * 2


async def test_one_without_a_body_keeps_its_connection() -> None:
    request = b"GET /v1/models HTTP/1.1\r\nhost: g\r\n" + H2C + b"\r\n"
    async with gateway_of(Engine(Role.PLAIN)) as gateway, asyncio.timeout(PATIENCE_SECONDS):
        reader, writer = await gateway.wire()
        for _ in range(2):
            writer.write(request)
            answer = await answer_on(reader)

            assert answer.startswith(b"HTTP/1.1 200 ")
            assert b"connection: close" not in answer
        writer.write(ask())
        assert (await answer_on(reader)).startswith(b"HTTP/1.1 200 ")


async def test_one_that_does_not_keep_its_connection_has_it_closed() -> None:
    request = asking_for_more(by_length(GOOD), H2C.replace(b"Upgrade,", b"close, Upgrade,"))
    async with gateway_of(Engine(Role.PLAIN)) as gateway, asyncio.timeout(PATIENCE_SECONDS):
        reader, writer = await gateway.wire()
        writer.write(request)

        answer = await reader.read()
        assert answer.startswith(b"HTTP/1.1 200 ")
        assert b"\r\nconnection: close\r\n" in answer


@framings
async def test_one_that_came_early_is_served_as_well(framed: Framing) -> None:
    async with gateway_of(Engine(Role.PLAIN)) as gateway, asyncio.timeout(PATIENCE_SECONDS):
        reader, writer = await gateway.wire()
        writer.write(ask() + asking_for_more(framed(GOOD)))
        for _ in range(2):
            assert (await answer_on(reader)).startswith(b"HTTP/1.1 200 ")
        assert gateway.engines[0].bodies == [question(), json.loads(GOOD)]


@framings
async def test_what_comes_behind_it_before_its_answer_is_no_request(framed: Framing) -> None:
    """It may be of the other protocol; the connection ends, and a client that meant a request asks again."""
    held = Held()
    async with gateway_of(Engine(Role.PLAIN, held)) as gateway, asyncio.timeout(PATIENCE_SECONDS):
        reader, writer = await gateway.wire()
        writer.write(asking_for_more(framed(GOOD)))
        call = await held.next()
        writer.write(SMUGGLED)
        # Behind that, on the same event loop, it has been read.
        assert (await gateway.http.get("/health")).status_code == 200
        await call.peer.send(as_json(ANSWER))

        answer = await reader.read()
        assert answer.startswith(b"HTTP/1.1 200 ")
        assert b"\r\nconnection: close\r\n" in answer
        assert answer.count(b"HTTP/1.1 ") == 1
        assert len(gateway.engines[0].calls) == 1


@pytest.fixture
def cuts(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Where what comes in one read is cut into two."""
    taken, at = HotProtocol.data_received, [0]

    def in_two(connection: HotProtocol, data: bytes) -> None:
        taken(connection, data[: at[0]])
        if data[at[0] :]:
            taken(connection, data[at[0] :])

    monkeypatch.setattr(HotProtocol, "data_received", in_two)
    return at


@pytest.mark.parametrize("body", [GOOD, SMUGGLED], ids=["a call", "a request as the body"])
@framings
async def test_it_is_one_request_wherever_reads_end(
    framed: Framing, body: bytes, cuts: list[int]
) -> None:
    """Neither its body nor what comes behind it is another one."""
    request = asking_for_more(framed(body)) + SMUGGLED
    status = b"HTTP/1.1 200 " if body == GOOD else b"HTTP/1.1 400 "
    async with gateway_of(Engine(Role.PLAIN)) as gateway, asyncio.timeout(PATIENCE_SECONDS):
        engine = gateway.engines[0]
        for at in range(1, len(request)):
            cuts[0] = at
            reader, writer = await gateway.wire()
            writer.write(request)
            answer = await reader.read()

            assert (answer[:13], at) == (status, at)
            assert (answer.count(b"HTTP/1.1 "), at) == (1, at)
            assert (engine.bodies, at) == ([json.loads(GOOD)] * (body == GOOD), at)
            engine.calls.clear()


DOUBTFUL = {
    "a length and a coding": b"content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    "two lengths": b"content-length: 2\r\ncontent-length: 2\r\n\r\n{}",
    "another coding": b"transfer-encoding: identity\r\n\r\n{}",
    "a coding that is not applied": b"transfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "chunked twice": b"transfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    "junk in a chunk's size": b"transfer-encoding: chunked\r\n\r\n2 x\r\n{}\r\n0\r\n\r\n",
    "junk after a chunk": b"transfer-encoding: chunked\r\n\r\n2\r\n{}x\r\n0\r\n\r\n",
}


@pytest.mark.parametrize("name", DOUBTFUL)
async def test_its_end_is_as_certain_as_that_of_any(name: str) -> None:
    async with gateway_of(Engine(Role.PLAIN)) as gateway, asyncio.timeout(PATIENCE_SECONDS):
        reader, writer = await gateway.wire()
        writer.write(asking_for_more(DOUBTFUL[name]) + SMUGGLED)

        answer = await reader.read()
        assert answer.startswith(b"HTTP/1.1 400 ")
        assert answer.count(b"HTTP/1.1 ") == 1
        assert not gateway.engines[0].calls


@pytest.mark.parametrize("target", [b"g:80", b"/health"])
async def test_nothing_is_served_behind_a_tunnel_that_is_refused(target: bytes) -> None:
    """What a client sends into one may be anybody's."""
    async with gateway_of(Engine(Role.PLAIN)) as gateway, asyncio.timeout(PATIENCE_SECONDS):
        reader, writer = await gateway.wire()
        writer.write(b"CONNECT %b HTTP/1.1\r\nhost: g:80\r\n\r\n" % target)

        answer = await reader.read()
        assert answer.startswith(b"HTTP/1.1 4")
        assert b"\r\nconnection: close\r\n" in answer


@pytest.mark.parametrize(("path", "more"), [(CHAT, H2C), ("/v1/charge", b"")])
async def test_a_client_that_expects_is_not_told_to_go_on_behind_its_refusal(
    path: str, more: bytes
) -> None:
    """A client that sends its body all the same took "100 Continue" for the answer to its next request."""
    expecting = more + b"expect: 100-continue\r\n"
    request = asking_for_more(by_length(b"u" * 2_000), expecting, path)
    head = request.index(b"\r\n\r\n") + 4
    async with (
        gateway_of(Engine(Role.PLAIN), max_body_bytes=1_000, passthrough=True) as gateway,
        asyncio.timeout(PATIENCE_SECONDS),
    ):
        reader, writer = await gateway.wire()
        writer.write(request[:head])

        assert (await answer_on(reader)).startswith(b"HTTP/1.1 413 ")
        writer.write(request[head:])
        assert await reader.read() == b""


async def test_one_that_was_answered_is_forgotten() -> None:
    """It was kept as long as its connection, with headers of up to 64 KiB that nobody counted."""
    mark = b"u" * 30_000

    def is_kept() -> bool:
        gc.collect()
        cycles = [found for found in gc.get_objects() if isinstance(found, AsgiCycle)]
        return any((b"x-mark", mark) in cycle._headers for cycle in cycles)

    async with gateway_of(Engine(Role.PLAIN)) as gateway, asyncio.timeout(PATIENCE_SECONDS):
        reader, writer = await gateway.wire()
        for request in (asking_for_more(by_length(GOOD), H2C + b"x-mark: %b\r\n" % mark), ask()):
            writer.write(request)
            assert (await answer_on(reader)).startswith(b"HTTP/1.1 200 ")

        await until(lambda: not is_kept(), "a connection that has let go of it")
