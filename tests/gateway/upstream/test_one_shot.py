"""What engines are asked in passing: whole answers or a reason, and no connection left behind."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest

from pdgate.gateway.security.engine_access import OPEN, EngineAccess
from pdgate.gateway.security.tls import engine_context
from pdgate.gateway.upstream.connection import MAX_HEAD_BYTES
from pdgate.gateway.upstream.one_shot import AskFailed, Gone, OneShotAnswer
from tests.support import waiting
from tests.support.certificates import Authority
from tests.support.ports import free_port
from tests.support.raw_server import Peer, Script, chunk, chunked, raw_server, reply

PATIENCE_SECONDS = waiting.PATIENCE_SECONDS
CONTINUED = b"HTTP/1.1 100 Continue\r\ncontent-length: 0\r\n\r\n"


def answering(*answers: bytes, closes: bool = False) -> Script:
    """One after the other, then the last one for ever."""
    left = list(answers)

    async def script(peer: Peer) -> None:
        await peer.send(left.pop(0) if len(left) > 1 else left[0])
        if closes:
            await peer.close()

    return script


async def asked(url: str, access: EngineAccess = OPEN, most_bytes: int = 1000) -> OneShotAnswer:
    async with asyncio.timeout(PATIENCE_SECONDS):
        with access.visit(url) as engine:
            return await engine.get("/x", most_bytes=most_bytes)


WHOLE = {
    "length": (reply(b"abc"), OneShotAnswer(200, b"abc")),
    "chunked": (chunked(b"ab", b"c"), OneShotAnswer(200, b"abc")),
    "empty": (reply(b""), OneShotAnswer(200, b"")),
    "no content": (b"HTTP/1.1 204 No Content\r\n\r\n", OneShotAnswer(204, b"")),
    "an error": (reply(b"no", b"503 No"), OneShotAnswer(503, b"no")),
    "a redirect": (
        reply(b"", b"302 Found", b"location: http://127.0.0.1:1/"),
        OneShotAnswer(302, b""),
    ),
    "1xx first": (CONTINUED + CONTINUED + reply(b"abc"), OneShotAnswer(200, b"abc")),
    "more behind it": (reply(b"abc") + reply(b"def"), OneShotAnswer(200, b"abc")),
    "garbage behind it": (reply(b"abc") + b"xyz", OneShotAnswer(200, b"abc")),
}


@pytest.mark.parametrize("name", WHOLE)
async def test_an_answer_is_read_to_its_end(name: str) -> None:
    sent, expected = WHOLE[name]
    async with raw_server(answering(sent)) as server:
        assert await asked(server.url) == expected


@pytest.mark.parametrize("name", WHOLE)
async def test_an_answer_may_come_byte_by_byte(name: str) -> None:
    sent, expected = WHOLE[name]

    async def script(peer: Peer) -> None:
        for at in range(len(sent)):
            await peer.send(sent[at : at + 1])
            await asyncio.sleep(0)

    async with raw_server(script) as server:
        assert await asked(server.url) == expected


@pytest.mark.parametrize("head", [b"", b"connection: close\r\n", b"transfer-encoding: gzip\r\n"])
async def test_without_a_length_the_end_of_the_connection_is_that_of_the_answer(
    head: bytes,
) -> None:
    sent = b"HTTP/1.1 200 OK\r\n" + head + b"\r\nto the end"
    async with raw_server(answering(sent, closes=True)) as server:
        assert await asked(server.url) == OneShotAnswer(200, b"to the end")


async def test_what_is_asked() -> None:
    access = EngineAccess(authorization="Bearer k")
    async with raw_server(answering(reply(b""))) as server:
        with access.visit(server.url + "/base/") as engine:
            await engine.get("/metrics", accept="text/plain")
            await engine.post("/tokenize", b'{"a": 1}')
        (got, posted), host = server.requests, server.url.removeprefix("http://").encode()

    ours = [
        (b"host", host),
        (b"authorization", b"Bearer k"),
        (b"accept-encoding", b"identity"),
        (b"user-agent", b"pdgate"),
    ]
    assert (got.line, got.body) == (b"GET /base/metrics HTTP/1.1", b"")
    assert got.headers == [*ours, (b"accept", b"text/plain")]
    assert (posted.line, posted.body) == (b"POST /base/tokenize HTTP/1.1", b'{"a": 1}')
    json = [(b"content-type", b"application/json"), (b"content-length", b"8")]
    assert posted.headers == [*ours, *json]


async def test_a_visit_is_one_connection_and_the_next_another() -> None:
    async with raw_server(answering(reply(b"abc"))) as server:
        for _ in range(2):
            with OPEN.visit(server.url) as engine:
                assert (
                    await engine.get("/a") == await engine.get("/b") == OneShotAnswer(200, b"abc")
                )

        assert [request.connection for request in server.requests] == [0, 0, 1, 1]


@pytest.mark.parametrize(
    "first",
    [
        reply(b"abc", b"200 OK", b"connection: close"),
        b"HTTP/1.0 200 OK\r\ncontent-length: 3\r\n\r\nabc",
        reply(b"abc") + reply(b"def"),
        reply(b"abc") + b"xyz",
        b"HTTP/1.1 101 Other\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n",
    ],
)
async def test_a_connection_that_cannot_be_trusted_gets_no_second_question(first: bytes) -> None:
    left = asyncio.Event()

    async def script(peer: Peer) -> None:
        if peer.request.connection:
            await peer.send(reply(b"ghi"))
        else:
            await peer.send(first)
            await peer.gone()
            left.set()

    async with raw_server(script) as server, asyncio.timeout(PATIENCE_SECONDS):
        with OPEN.visit(server.url) as engine:
            await engine.get("/a")
            assert await engine.get("/b") == OneShotAnswer(200, b"ghi")
            await left.wait()

        assert [request.connection for request in server.requests] == [0, 1]


async def test_who_leaves_between_two_questions_is_visited_anew() -> None:
    """As servers do that keep connections and do not say for how long."""

    async def script(peer: Peer) -> None:
        if peer.request.line.startswith(b"GET /b") and peer.request.connection == 0:
            await peer.abort()
        else:
            await peer.send(reply(b"abc"))

    async with raw_server(script) as server:
        with OPEN.visit(server.url) as engine:
            await engine.get("/a")
            assert await engine.get("/b") == OneShotAnswer(200, b"abc")

        assert [request.connection for request in server.requests] == [0, 0, 1]


async def test_who_leaves_in_the_middle_of_an_answer_is_not_asked_again() -> None:
    async def script(peer: Peer) -> None:
        second = peer.request.line.startswith(b"GET /b")
        await peer.send(reply(b"abc")[:-1] if second else reply(b"abc"))
        if second:
            await peer.close()

    async with raw_server(script) as server:
        with OPEN.visit(server.url) as engine:
            await engine.get("/a")
            with pytest.raises(AskFailed, match="GET /b: it broke off"):
                await engine.get("/b")

        assert len(server.requests) == 2


async def test_who_leaves_for_good_between_two_questions_is_gone() -> None:
    async def script(peer: Peer) -> None:
        if peer.request.line.startswith(b"GET /b"):
            server.stop()
            await peer.abort()
        else:
            await peer.send(reply(b"abc"))

    async with raw_server(script) as server:
        with OPEN.visit(server.url) as engine:
            await engine.get("/a")
            with pytest.raises(Gone):
                await engine.get("/b")


BROKEN: dict[str, tuple[bytes, str]] = {
    "nothing": (b"", "broke off"),
    "half a head": (b"HTTP/1.1 200 OK\r\ncont", "broke off"),
    "half a body": (reply(b"0123456789")[:-3], "broke off"),
    "half a chunk": (chunked(b"0123456789")[:-10], "broke off"),
    "only 1xx": (CONTINUED, "broke off"),
    "no HTTP": (b"SSH-2.0-OpenSSH_9.2\r\n", "not HTTP"),
    "two lengths": (
        b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\n",
        "not HTTP",
    ),
    "a bad chunk": (chunked(b"one")[:-5] + b"zz\r\n", "not HTTP"),
    "too long": (reply(b"x" * 1001), "longer than 1000 bytes"),
    "too long in chunks": (
        chunked()[:-5] + b"".join(chunk(b"x" * 100) for _ in range(11)),
        "longer than 1000 bytes",
    ),
    "an endless head": (
        b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * (MAX_HEAD_BYTES // 5),
        "head of its answer is too long",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
async def test_what_is_no_whole_answer_is_named_and_is_not_gone(name: str) -> None:
    sent, why = BROKEN[name]
    async with raw_server(answering(sent, closes=why == "broke off")) as server:
        with pytest.raises(AskFailed, match=f"GET /x: .*{why}") as caught:
            await asked(server.url)

    assert not isinstance(caught.value, Gone)


async def test_what_is_as_long_as_it_may_be_is_taken() -> None:
    async with raw_server(answering(reply(b"x" * 1000))) as server:
        assert len((await asked(server.url)).body) == 1000


@pytest.mark.parametrize("host", ["127.0.0.1", "nobody.invalid", "a" * 64])
async def test_where_nobody_listens_the_engine_is_gone(host: str) -> None:
    where = f"{host}:{free_port()}"

    with pytest.raises(Gone, match=f"no connection to {where}: .") as one:
        await asked(f"http://{where}")
    with pytest.raises(Gone) as another:
        await asked(f"http://{where}")

    # Who compares what is wrong now with what was wrong finds it the same.
    assert str(one.value) == str(another.value)


@pytest.mark.parametrize("url", ["", "ftp://a", "http://", "http://a:b", "http://a/ä"])
async def test_what_is_no_url_is_an_answer_of_its_own(url: str) -> None:
    with pytest.raises(AskFailed):
        await asked(url)


@asynccontextmanager
async def mute() -> AsyncIterator[tuple[int, "asyncio.Queue[bytes]"]]:
    """Port of one that says nothing, and what it gets; b"" when it is left."""
    got: asyncio.Queue[bytes] = asyncio.Queue()

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(1 << 16):
                got.put_nowait(data)
        got.put_nowait(b"")
        writer.close()

    server = await asyncio.start_server(listen, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1], got


@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_nothing_is_left_of_a_visit_that_is_cancelled(scheme: str) -> None:
    """While it waits for an answer, and while it shakes hands."""
    async with asyncio.timeout(PATIENCE_SECONDS), mute() as (port, got):
        visiting = asyncio.create_task(asked(f"{scheme}://127.0.0.1:{port}"))
        assert await got.get()
        visiting.cancel()

        assert await got.get() == b""
        with pytest.raises(asyncio.CancelledError):
            await visiting


async def test_nothing_is_left_of_a_visit_that_ends() -> None:
    gone = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.send(reply(b"abc"))
        await peer.gone()
        gone.set()

    async with raw_server(script) as server, asyncio.timeout(PATIENCE_SECONDS):
        with OPEN.visit(server.url) as engine:
            await engine.get("/a")
            assert not gone.is_set()
        await gone.wait()


async def test_bytes_that_nobody_asked_for_are_not_the_next_answer() -> None:
    more, sent = asyncio.Event(), asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.send(reply(b"abc"))
        if peer.request.connection == 0:
            await more.wait()
            await peer.send(reply(b"def"))
            await peer.gone()
            sent.set()

    async with raw_server(script) as server, asyncio.timeout(PATIENCE_SECONDS):
        with OPEN.visit(server.url) as engine:
            await engine.get("/a")
            more.set()
            await sent.wait()
            assert await engine.get("/b") == OneShotAnswer(200, b"abc")


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


async def test_tls_is_spoken_with_the_name_that_is_given(authority: Authority) -> None:
    made = authority.signs("engine.internal")
    theirs = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    theirs.load_cert_chain(made.cert, made.key)
    ours = engine_context(authority.cert)
    async with raw_server(answering(reply(b"abc")), tls=theirs) as server:
        assert await asked(server.url, EngineAccess(ours, "engine.internal")) == OneShotAnswer(
            200, b"abc"
        )
        for access in (EngineAccess(ours), EngineAccess(ours, "other"), OPEN):
            with pytest.raises(Gone, match=r"certificate|CERTIFICATE"):
                await asked(server.url, access)


async def test_an_address_of_ipv6_is_one() -> None:
    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(reply(b"abc"))
        await reader.read()
        writer.close()
        left.set()

    heads: list[bytes] = []
    left = asyncio.Event()
    try:
        server = await asyncio.start_server(listen, "::1", 0, family=socket.AF_INET6)
    except OSError:
        pytest.skip("this machine has no IPv6")
    async with server:
        port = server.sockets[0].getsockname()[1]
        assert await asked(f"http://[::1]:{port}") == OneShotAnswer(200, b"abc")
        await left.wait()
    assert f"\r\nhost: [::1]:{port}\r\n".encode() in heads[0]
