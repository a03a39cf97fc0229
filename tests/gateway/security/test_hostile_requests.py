"""Raw bytes that try to be two requests, or endless: real sockets."""

import asyncio

import pytest

from pdgate.gateway.front import limits
from pdgate.gateway.front.limits import MAX_HEAD_BYTES, MAX_HEADERS
from pdgate.protocols.call import CHAT
from pdgate.protocols.instance import Role
from tests.support.fleet import (
    ANSWER,
    JSON_TYPE,
    PATIENCE_SECONDS,
    Engine,
    Gateway,
    Held,
    as_json,
    ask,
    gateway_of,
)

LINE = f"POST {CHAT} HTTP/1.1\r\nhost: g\r\n".encode()
HEAD_SECONDS = 2.0
"""What a head of ours surely takes less than, however busy the machine."""

SECOND = ask(b"x-session-id: smuggled")
"""A whole request, which hides in or behind another one."""

FRAMINGS = {
    "two lengths": b"content-length: 0\r\ncontent-length: %d\r\n\r\n" % len(SECOND),
    "one length twice": b"content-length: 0\r\ncontent-length: 0\r\n\r\n",
    "a list of lengths": b"content-length: 0, 5\r\n\r\n",
    "a length with a sign": b"content-length: +0\r\n\r\n",
    "a negative length": b"content-length: -1\r\n\r\n",
    "a length too large to be one": b"content-length: 99999999999999999999\r\n\r\n",
    "no length": b"content-length: \r\n\r\n",
    "length and coding": b"content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    "coding and length": b"transfer-encoding: chunked\r\ncontent-length: 5\r\n\r\n0\r\n\r\n",
    "another coding": b"transfer-encoding: identity\r\n\r\n",
    "a misspelt coding": b"transfer-encoding: xchunked\r\n\r\n0\r\n\r\n",
    "chunked first": b"transfer-encoding: chunked, identity\r\n\r\n0\r\n\r\n",
    "a coding that is not applied": b"transfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "codings in two lines": b"transfer-encoding: gzip\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunked twice": b"transfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    "space before the colon": b"content-length : 0\r\n\r\n",
    "a folded line": b"x-a: a\r\n transfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    "a bare CR": b"x-a: a\rcontent-length: 0\r\n\r\n",
    "a bare LF": b"x-a: a\ncontent-length: 0\n\n",
    "a NUL": b"x-a: a\0\r\n\r\n",
    "a control character": b"x-a: a\x01\r\n\r\n",
    "junk after a chunk": b"transfer-encoding: chunked\r\n\r\n2\r\n{}x\r\n0\r\n\r\n",
    "junk in a chunk's size": b"transfer-encoding: chunked\r\n\r\n2 x\r\n{}\r\n0\r\n\r\n",
    "a chunk too large to be one": b"transfer-encoding: chunked\r\n\r\n" + b"f" * 17 + b"\r\n",
    "chunks without CR": b"transfer-encoding: chunked\r\n\r\n0\n\n",
}


async def said(gateway: Gateway, request: bytes) -> bytes:
    """Everything up to the end of the connection, which the gateway closes."""
    reader, writer = await gateway.wire()
    writer.write(request)
    async with asyncio.timeout(PATIENCE_SECONDS):
        try:
            return await reader.read()
        except ConnectionResetError:
            return b""


async def test_nothing_gets_through_behind_a_doubtful_end() -> None:
    """400, the connection is closed, and what follows is no request."""
    async with gateway_of(Engine(Role.PLAIN)) as gateway:
        for name, framing in FRAMINGS.items():
            answer = await said(gateway, LINE + framing + SECOND)

            assert (answer[:13], name) == (b"HTTP/1.1 400 ", name)
            assert (answer.count(b"HTTP/1.1 "), name) == (1, name)
            assert b"\r\nconnection: close\r\n" in answer
        assert not gateway.engines[0].calls


async def test_the_same_on_other_routes() -> None:
    async with gateway_of() as gateway:
        for framing in (FRAMINGS["a coding that is not applied"], FRAMINGS["two lengths"]):
            answer = await said(gateway, b"POST /health HTTP/1.1\r\nhost: g\r\n" + framing + SECOND)

            assert answer.startswith(b"HTTP/1.1 400 ")
            assert answer.count(b"HTTP/1.1 ") == 1


@pytest.mark.parametrize("line", [b"POST " + CHAT.encode(), b"GET /health", b"POST /v1/rerank"])
@pytest.mark.parametrize("version", [b"1.1", b"1.0"])
@pytest.mark.parametrize("hosts", [b"host: a\r\nhost: a\r\n", b"host: a\r\nHOST: b\r\n"])
async def test_a_request_has_one_host(line: bytes, hosts: bytes, version: bytes) -> None:
    """Of two a proxy before us may have obeyed the other one (RFC 9112, section 3.2)."""
    request = line + b" HTTP/%s\r\n" % version + hosts + b"content-length: 2\r\n\r\n{}" + SECOND
    async with gateway_of(Engine(Role.PLAIN)) as gateway:
        answer = await said(gateway, request)

        assert answer.startswith(b"HTTP/1.1 400 ")
        assert answer.count(b"HTTP/1.1 ") == 1
        assert b"one Host header" in answer
        assert not gateway.engines[0].calls


async def test_a_request_after_the_last_one_is_none() -> None:
    async with gateway_of(Engine(Role.PLAIN)) as gateway:
        answer = await said(gateway, ask(b"connection: close") + SECOND)

        assert answer.count(b"HTTP/1.1 ") == 1
        assert len(gateway.engines[0].calls) == 1


async def test_no_upgrade_hides_a_request() -> None:
    upgrade = b"connection: upgrade\r\nupgrade: h2c\r\ncontent-length: 0\r\n\r\n"
    async with gateway_of(Engine(Role.PLAIN)) as gateway:
        reader, writer = await gateway.wire()
        writer.write(LINE + upgrade + SECOND)
        writer.write_eof()
        async with asyncio.timeout(PATIENCE_SECONDS):
            assert (await reader.readline()).startswith(b"HTTP/1.1 400 ")
        assert not gateway.engines[0].calls


async def test_nobody_speaks_websocket() -> None:
    upgrade = b"connection: upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\n"
    async with gateway_of() as gateway, asyncio.timeout(PATIENCE_SECONDS):
        reader, writer = await gateway.wire()
        writer.write(b"GET /health HTTP/1.1\r\nhost: g\r\n" + upgrade + b"\r\n")

        assert (await reader.readline()).startswith(b"HTTP/1.1 200 ")


async def test_an_ancient_request_is_none() -> None:
    async with gateway_of() as gateway:
        assert (await said(gateway, b"GET /health\r\n\r\n")).startswith(b"HTTP/1.1 400 ")


async def test_trailers_are_no_headers() -> None:
    """They come after the head was judged."""
    request = (
        LINE
        + JSON_TYPE
        + b"\r\ntransfer-encoding: chunked\r\nconnection: close\r\n\r\n2\r\n{}\r\n0\r\n"
        + b"x-session-id: late\r\nx-request-id: late\r\nauthorization: Bearer late\r\n\r\n"
    )
    async with gateway_of(Engine(Role.PLAIN)) as gateway:
        answer = await said(gateway, request)

        assert answer.startswith(b"HTTP/1.1 200 ")
        assert b"late" not in answer
        (call,) = gateway.engines[0].calls
        assert not [found for _, found in call.headers if b"late" in found]


@pytest.mark.parametrize("size", [MAX_HEAD_BYTES // 2, MAX_HEAD_BYTES + 1, MAX_HEAD_BYTES * 40])
@pytest.mark.parametrize("where", ["value", "headers", "name", "url"])
async def test_a_head_has_its_limit(size: int, where: str) -> None:
    line = b"x-a: " + b"a" * 1019 + b"\r\n"
    request = {
        "value": LINE + b"x-a: " + b"a" * size + b"\r\n\r\n",
        "headers": LINE + line * (size // len(line) + 1) + b"\r\n",
        "name": LINE + b"a" * size + b": a\r\n\r\n",
        "url": b"GET /" + b"a" * size + b" HTTP/1.1\r\nhost: g\r\n\r\n",
    }[where]
    async with gateway_of(Engine(Role.PLAIN)) as gateway:
        reader, writer = await gateway.wire()
        writer.write(request)
        async with asyncio.timeout(PATIENCE_SECONDS):
            status = (await reader.readline())[9:12]

        assert (status == b"431") == (size > MAX_HEAD_BYTES)


@pytest.mark.parametrize("endless", [b"x-a: a\r\n", b"a"], ids=["lines", "one line"])
@pytest.mark.parametrize(
    "start",
    [
        LINE,
        LINE + b"transfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n",
        LINE + b"transfer-encoding: chunked\r\n\r\n2;x=",
    ],
    ids=["head", "trailers", "chunk extension"],
)
async def test_what_never_ends_is_ended(start: bytes, endless: bytes) -> None:
    """Nothing else bounds what the parser keeps."""
    async with gateway_of(Engine(Role.PLAIN)) as gateway, asyncio.timeout(PATIENCE_SECONDS):
        reader, writer = await gateway.wire()
        writer.write(start)
        reading = asyncio.create_task(reader.read(4096))
        while not reading.done():
            writer.write(endless * 1024)
            try:
                await writer.drain()
            except ConnectionError:
                break
            await asyncio.sleep(0)

        assert (await reading)[:12] in (b"HTTP/1.1 431", b"HTTP/1.1 400")
        assert not gateway.engines[0].calls


@pytest.mark.parametrize("more", [0, 1])
async def test_headers_have_a_number(more: int) -> None:
    """host, content-length and content-type are three of them."""
    headers = [b"x-%d: a" % number for number in range(MAX_HEADERS - 4 + more)]
    async with gateway_of(Engine(Role.PLAIN)) as gateway:
        answer = await said(gateway, ask(b"connection: close", *headers))

        assert answer.startswith(b"HTTP/1.1 431 " if more else b"HTTP/1.1 200 ")


async def test_a_large_body_is_no_large_head() -> None:
    async with gateway_of(Engine(Role.PLAIN)) as gateway:
        for _ in range(2):
            assert (await gateway.chat(image="A" * (8 * MAX_HEAD_BYTES))).status_code == 200


async def test_a_head_that_does_not_come_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Not one byte, or byte by byte; calls that take longer than that are served on."""
    monkeypatch.setattr(limits, "HEAD_SECONDS", HEAD_SECONDS)
    async with gateway_of(Engine(Role.PLAIN)) as gateway, asyncio.timeout(PATIENCE_SECONDS):
        silent, _ = await gateway.wire()
        slow, writer = await gateway.wire()
        writer.write(LINE)
        served, calling = await gateway.wire()
        calling.write(ask())
        assert (await served.readline()).startswith(b"HTTP/1.1 200 ")

        assert await silent.read() == b""
        assert await slow.read() == b""
        # Between two calls another limit counts.
        calling.write(ask())
        assert await served.readuntil(b"HTTP/1.1 200 ")


async def test_half_a_next_request_does_not_end_the_answer_to_this_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "HEAD_SECONDS", HEAD_SECONDS)
    held = Held()
    async with gateway_of(Engine(Role.PLAIN, held)) as gateway, asyncio.timeout(PATIENCE_SECONDS):
        reader, writer = await gateway.wire()
        writer.write(ask() + LINE)
        call = await held.next()
        # Another connection, made later, that has met the limit shows that it has passed.
        later, _ = await gateway.wire()
        assert await later.read() == b""
        await call.peer.send(as_json(ANSWER))

        assert (await reader.readline()).startswith(b"HTTP/1.1 200 ")
