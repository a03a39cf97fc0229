"""The client against engines on real sockets, in both event loops."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator

import pytest

from pdgate.forwarders.base import Leg
from pdgate.gateway.deadlines import Timeouts
from pdgate.gateway.upstream import HttpUpstream, UpstreamSettings
from pdgate.protocols.apis import PASSED
from pdgate.protocols.call import Call, Raw
from pdgate.protocols.errors import (
    EngineBusy,
    EngineFailed,
    EngineRefused,
    EngineRejected,
)
from pdgate.protocols.instance import Instance, Role
from tests.support.raw_server import Peer, chunk, chunked, raw_server, reply
from tests.support.sinks import Collected
from tests.support.waiting import PATIENCE_SECONDS

CALL = Call("id", "attempt", "/v1/completions", {}, [(b"authorization", b"Bearer k")])
FAST = Timeouts(connect_seconds=5, prefill_seconds=0.2, first_byte_seconds=0.2, idle_seconds=0.2)


@pytest.fixture
async def upstream() -> AsyncIterator[HttpUpstream]:
    async with HttpUpstream() as upstream:
        yield upstream


def leg(url: str, role: Role = Role.PREFILL, **fields: object) -> Leg:
    return Leg(Instance("e0", url, role, "vllm-nixl"), "/v1/completions", {"prompt": "x", **fields})


async def answer_json(peer: Peer) -> None:
    await peer.send(reply(b'{"id": "a", "n": 1.50}'))


async def test_a_reply_is_an_object_of_raw_values(upstream: HttpUpstream) -> None:
    async with raw_server(answer_json) as server:
        fields = await upstream.ask(leg(server.url, n=Raw(b"1.50")), CALL)

        assert {name: bytes(raw) for name, raw in fields.items()} == {"id": b'"a"', "n": b"1.50"}
        (request,) = server.requests
        assert request.line == b"POST /v1/completions HTTP/1.1"
        assert request.body == b'{"prompt":"x","n":1.50}'
        assert request.header(b"x-request-id") == b"attempt"
        assert request.header(b"authorization") == b"Bearer k"


async def test_calls_one_after_another_share_a_connection(upstream: HttpUpstream) -> None:
    async with raw_server(answer_json) as server:
        for _ in range(3):
            await upstream.ask(leg(server.url), CALL)
            async with upstream.open(leg(server.url), CALL) as answer:
                answer.start(sink := Collected())
                await sink.body()

        assert {request.connection for request in server.requests} == {0}


async def test_calls_at_once_have_a_connection_each(upstream: HttpUpstream) -> None:
    arrived = asyncio.Semaphore(0)
    go = asyncio.Event()

    async def script(peer: Peer) -> None:
        arrived.release()
        await go.wait()
        await answer_json(peer)

    async with raw_server(script) as server, asyncio.TaskGroup() as group:
        for _ in range(5):
            group.create_task(upstream.ask(leg(server.url), CALL))
        for _ in range(5):
            await arrived.acquire()
        assert server.connections == 5
        go.set()


async def test_a_large_body_arrives_whole(upstream: HttpUpstream) -> None:
    async with raw_server(answer_json) as server:
        await upstream.ask(leg(server.url, prompt="y" * 3_000_000), CALL)

        assert len(server.requests[0].body) > 3_000_000


async def test_an_answer_is_open_as_soon_as_its_head_is_there(upstream: HttpUpstream) -> None:
    go = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.send(
            b"HTTP/1.1 200 OK\r\nContent-Type: a/b\r\nTransfer-Encoding: chunked\r\n\r\n"
        )
        await go.wait()
        await peer.send(chunk(b"one"), chunk(b"two"), b"0\r\n\r\n")

    async with raw_server(script) as server, upstream.open(leg(server.url), CALL) as answer:
        assert answer.status == 200
        assert list(answer.headers) == [
            (b"content-type", b"a/b"),
            (b"transfer-encoding", b"chunked"),
        ]
        go.set()
        assert (await answer.ready()).startswith(b"one")
        assert await answer.ready(beyond=3) == b"onetwo"
        answer.start(sink := Collected())
        assert await sink.body() == b"onetwo"


async def test_pieces_pass_as_they_arrive(upstream: HttpUpstream) -> None:
    seen = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.send(chunked(b"one", kind=b"a/b").removesuffix(b"0\r\n\r\n"))
        await seen.wait()
        await peer.send(chunk(b"two"), b"0\r\n\r\n")

    async with raw_server(script) as server, upstream.open(leg(server.url), CALL) as answer:
        answer.start(sink := Collected())
        await sink.first.wait()
        seen.set()
        assert await sink.body() == b"onetwo"
        assert sink.chunks[0] == b"one"


@pytest.mark.parametrize("answer", [reply(b""), chunked(kind=b"a/b")])
async def test_an_empty_body_is_ready_when_complete(upstream: HttpUpstream, answer: bytes) -> None:
    async def script(peer: Peer) -> None:
        await peer.send(answer)

    async with raw_server(script) as server, upstream.open(leg(server.url), CALL) as opened:
        assert await opened.ready() == b""
        opened.start(sink := Collected())
        assert await sink.body() == b""


@pytest.mark.parametrize(
    "status", [b"204 No Content", b"205 Reset Content", b"206 Partial Content"]
)
async def test_an_answer_that_is_said_to_be_none_or_a_part_is_none(
    upstream: HttpUpstream, status: bytes
) -> None:
    """Of a call; a route that only engines know may be answered so."""
    passed = Call("id", "attempt", "/v1/files/1", {}, api=PASSED)

    async def script(peer: Peer) -> None:
        await peer.send(b"HTTP/1.1 %b\r\ncontent-length: 0\r\n\r\n" % status)

    async with raw_server(script) as server:
        with pytest.raises(EngineFailed, match=f"answered with {status[:3].decode()}"):
            async with upstream.open(leg(server.url), CALL):
                pass
        async with upstream.open(leg(server.url), passed) as opened:
            assert opened.status == int(status[:3])


async def test_ready_may_want_more_than_the_buffer(upstream: HttpUpstream) -> None:
    async def script(peer: Peer) -> None:
        await peer.send(reply(b"x" * 2_000_000))

    async with raw_server(script) as server, upstream.open(leg(server.url), CALL) as answer:
        assert len(await answer.ready(beyond=1_500_000)) > 1_500_000
        answer.start(sink := Collected())
        assert len(await sink.body()) == 2_000_000


async def test_ready_fails_when_what_was_wanted_will_not_come(upstream: HttpUpstream) -> None:
    """Half a JSON answer is of no use; another engine can still be asked."""

    async def script(peer: Peer) -> None:
        await peer.send(reply(b"0123456789")[:-5])
        await peer.close()

    async with raw_server(script) as server, upstream.open(leg(server.url), CALL) as answer:
        with pytest.raises(EngineFailed, match="broke off"):
            await answer.ready(beyond=1000)


@pytest.mark.parametrize("stage", ["ask", "open", "ready", "body", "block"])
async def test_leaving_closes_the_connection_at_once(upstream: HttpUpstream, stage: str) -> None:
    asked, gone = asyncio.Event(), asyncio.Event()

    async def script(peer: Peer) -> None:
        if stage in ("ready", "body", "block"):
            await peer.send(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
        if stage == "body":
            await peer.send(chunk(b"one"))
        asked.set()
        await peer.gone()
        gone.set()

    async def call(url: str) -> None:
        if stage == "ask":
            await upstream.ask(leg(url), CALL)
        async with upstream.open(leg(url), CALL) as answer:
            if stage == "block":
                return
            if stage == "ready":
                await answer.ready()
            answer.start(sink := Collected())
            await sink.body()

    async with raw_server(script) as server:
        task = asyncio.create_task(call(server.url))
        await asked.wait()
        if stage != "block":
            task.cancel()
        async with asyncio.timeout(PATIENCE_SECONDS):
            await gone.wait()
        await asyncio.wait([task])
        assert task.cancelled() or stage == "block"


async def test_a_cancelled_connect_leaks_nothing(upstream: HttpUpstream) -> None:
    """A backlog that is full accepts nobody."""
    with socket.socket() as listener, socket.socket() as filler:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        filler.connect(listener.getsockname())
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        tasks = [asyncio.create_task(upstream.ask(leg(url), CALL)) for _ in range(3)]
        await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)

        assert all(task.cancelled() for task in tasks)
        await _until_closed(upstream)


async def _until_closed(upstream: HttpUpstream) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        for pool in list(upstream._pools.values()):
            for connection in list(pool.live):
                await connection.closed
    assert upstream.connections == 0


async def test_the_end_of_the_block_closes_everything() -> None:
    gone = asyncio.Semaphore(0)
    asked = asyncio.Event()

    async def script(peer: Peer) -> None:
        if peer.request.connection == 0:
            await peer.send(reply(b"{}"))
        else:
            asked.set()
        await peer.gone()
        gone.release()

    async with raw_server(script) as server:
        async with HttpUpstream() as upstream:
            await upstream.ask(leg(server.url), CALL)
            busy = [asyncio.create_task(upstream.ask(leg(server.url), CALL)) for _ in range(2)]
            await asked.wait()
        for task in busy:
            with pytest.raises(EngineFailed):
                await task
        assert upstream.connections == 0
        await gone.acquire()
        await gone.acquire()


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:{port}", "nonsense", "http://a..b:1", "http://h:x"]
)
async def test_who_cannot_be_reached_refused(upstream: HttpUpstream, url: str) -> None:
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        with pytest.raises(EngineRefused) as caught:
            await upstream.ask(leg(url.format(port=deaf.getsockname()[1])), CALL)
    assert caught.value.at == "e0"
    assert "127.0.0.1" not in str(caught.value)
    assert upstream.connections == 0


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b"null", b"<html>"])
async def test_a_reply_that_is_no_object_is_a_failure(upstream: HttpUpstream, body: bytes) -> None:
    async def script(peer: Peer) -> None:
        await peer.send(reply(body))

    async with raw_server(script) as server:
        with pytest.raises(EngineFailed, match="not a JSON object"):
            await upstream.ask(leg(server.url), CALL)


async def test_a_4xx_is_the_engines_own_answer(upstream: HttpUpstream) -> None:
    async def script(peer: Peer) -> None:
        await peer.send(reply(b'{"error": 1}', b"400 Bad", b"content-type: a/b", b"server: x"))

    async with raw_server(script) as server:
        for _ in range(2):
            with pytest.raises(EngineRejected) as caught:
                await upstream.open(leg(server.url), CALL).__aenter__()
            error = caught.value
            assert (error.answer_status, error.body) == (400, b'{"error": 1}')
            assert error.headers == [(b"content-type", b"a/b")]
        assert server.connections == 1


async def test_a_503_is_busy(upstream: HttpUpstream) -> None:
    async def script(peer: Peer) -> None:
        await peer.send(reply(b"", b"503 Busy", b"retry-after: 9"))

    async with raw_server(script) as server:
        with pytest.raises(EngineBusy) as caught:
            await upstream.ask(leg(server.url), CALL)
    assert caught.value.retry_after_seconds == 9


async def test_an_endless_error_is_cut_short(upstream: HttpUpstream) -> None:
    async def script(peer: Peer) -> None:
        await peer.send(b"HTTP/1.1 400 Bad\r\ntransfer-encoding: chunked\r\n\r\n")
        while True:
            await peer.send(chunk(b"x" * 60_000))

    async with raw_server(script) as server:
        with pytest.raises(EngineRejected) as caught:
            await upstream.ask(leg(server.url), CALL)
        assert len(caught.value.body) == 1 << 20
        await _until_closed(upstream)


async def test_an_endless_reply_is_a_failure() -> None:
    async def script(peer: Peer) -> None:
        await peer.send(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
        while True:
            await peer.send(chunk(b"x" * 60_000))

    settings = UpstreamSettings(max_reply_bytes=1_000_000)
    async with raw_server(script) as server, HttpUpstream(settings) as upstream:
        with pytest.raises(EngineFailed, match="too large an answer"):
            await upstream.ask(leg(server.url), CALL)


def anonymous(purpose: int) -> ssl.SSLContext:
    """TLS without certificates, so that no key has to lie here."""
    context = ssl.SSLContext(purpose)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers("aNULL:@SECLEVEL=0")
    return context


async def test_https_is_spoken_to_https_urls() -> None:
    settings = UpstreamSettings(tls=anonymous(ssl.PROTOCOL_TLS_CLIENT))
    async with (
        raw_server(answer_json, tls=anonymous(ssl.PROTOCOL_TLS_SERVER)) as server,
        HttpUpstream(settings) as upstream,
    ):
        for _ in range(2):
            await upstream.ask(leg(server.url, prompt="y" * 500_000), CALL)

        assert server.connections == 1


async def test_an_answer_over_tls_is_read_that_came_before_the_end() -> None:
    """Long reads wait for turns, and the transport tells of an end that came with one at once."""

    async def script(peer: Peer) -> None:
        # Tiny ones, which take long to parse; all of it fits one read.
        pieces = [b'{"a": "', *[b"x"] * 10_000, b'"}']
        await peer.send(chunked(*pieces, kind=b"application/json"))
        await peer.close()

    settings = UpstreamSettings(tls=anonymous(ssl.PROTOCOL_TLS_CLIENT))
    async with (
        raw_server(script, tls=anonymous(ssl.PROTOCOL_TLS_SERVER)) as server,
        HttpUpstream(settings) as upstream,
    ):
        async with asyncio.TaskGroup() as group:
            asked = [group.create_task(upstream.ask(leg(server.url), CALL)) for _ in range(24)]
        for task in asked:
            assert len(task.result()["a"]) == 10_002

        assert len(server.requests) == len(asked)


async def test_an_engine_without_a_certificate_refused(upstream: HttpUpstream) -> None:
    """It never saw the request."""
    async with raw_server(answer_json, tls=anonymous(ssl.PROTOCOL_TLS_SERVER)) as server:
        with pytest.raises(EngineRefused):
            await upstream.ask(leg(server.url), CALL)

        assert not server.requests


async def test_nodelay_is_on(upstream: HttpUpstream) -> None:
    """Both event loops do it for us; were it off, a head and its body could wait 40 ms."""
    async with raw_server(answer_json) as server:
        await upstream.ask(leg(server.url), CALL)
        (pool,) = upstream._pools.values()
        (connection,) = pool.live
        wire = connection.transport.get_extra_info("socket")
        assert wire.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
