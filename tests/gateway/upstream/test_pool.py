"""Which connections are used again, which are not, and when a call is sent twice."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from pdgate.forwarders.base import Leg
from pdgate.gateway.upstream import HttpUpstream, UpstreamSettings
from pdgate.protocols.apis import PASSED
from pdgate.protocols.call import Call, Passed
from pdgate.protocols.errors import EngineFailed
from pdgate.protocols.instance import Instance, Role
from tests.support.raw_server import Peer, chunk, raw_server, reply
from tests.support.waiting import PATIENCE_SECONDS

CALL = Call("id", "attempt", "/v1/completions", {})


def leg(url: str, at: str = "e0") -> Leg:
    return Leg(Instance(at, url, Role.PREFILL, "vllm-nixl"), "/v1/completions", {})


def stale(end: Callable[[Peer], Awaitable[None]]) -> Callable[[Peer], Awaitable[None]]:
    """The first connection serves once, and ends when it is asked again."""
    served: set[int] = set()

    async def script(peer: Peer) -> None:
        if peer.request.connection == 0 and 0 in served:
            await end(peer)
            return
        served.add(peer.request.connection)
        await peer.send(reply(b"{}"))

    return script


@pytest.mark.parametrize("end", [Peer.close, Peer.abort])
async def test_a_stale_connection_costs_the_client_nothing(
    end: Callable[[Peer], Awaitable[None]],
) -> None:
    """uvicorn closes after 5 s, perhaps just as we send."""
    async with raw_server(stale(end)) as server, HttpUpstream() as upstream:
        await upstream.ask(leg(server.url), CALL)
        assert await upstream.ask(leg(server.url), CALL) == {}

        assert [request.connection for request in server.requests] == [0, 0, 1]


def passed(method: str, url: str) -> tuple[Leg, Call]:
    """A request of a route that only engines know."""
    what = Passed(method, b"{}")
    call = Call("id", "attempt", "/v1/charge", {}, method=method, api=PASSED, passed=what)
    return Leg(Instance("e0", url, Role.PLAIN, "plain"), "/v1/charge", {}, passed=what), call


async def status_of(upstream: HttpUpstream, leg: Leg, call: Call) -> int:
    async with upstream.open(leg, call) as answer:
        await answer.ready()
        return answer.status


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
async def test_what_must_not_be_done_twice_is_sent_on_a_connection_of_its_own(method: str) -> None:
    """Of one that served before it would be unknown whether the engine closed it, or died of this."""
    async with raw_server(stale(Peer.close)) as server, HttpUpstream() as upstream:
        await upstream.ask(leg(server.url), CALL)
        assert await status_of(upstream, *passed(method, server.url)) == 200

        assert [request.connection for request in server.requests] == [0, 1]
        # That one is kept, and serves others.
        await upstream.ask(leg(server.url), CALL)
        assert [request.connection for request in server.requests] == [0, 1, 1]


@pytest.mark.parametrize("at_once", [1, 3])
async def test_what_must_not_be_done_twice_takes_the_place_of_a_free_connection(
    at_once: int,
) -> None:
    """Each left one more that was free: they grew with the rate, until they had been idle for long enough."""
    async with (
        raw_server(lambda peer: peer.send(reply(b"{}"))) as server,
        HttpUpstream(UpstreamSettings(keep_idle_seconds=1000)) as upstream,
    ):
        for _ in range(4):
            async with asyncio.TaskGroup() as group:
                for _ in range(at_once):
                    group.create_task(status_of(upstream, *passed("POST", server.url)))

        assert len({request.connection for request in server.requests}) == 4 * at_once
        (pool,) = upstream._pools.values()
        assert len(pool.idle) <= at_once


async def test_what_must_not_be_done_twice_is_not() -> None:
    """Its engine has read it, and done it for all that is known."""

    async def script(peer: Peer) -> None:
        if len(server.requests) == 2:
            await peer.close()
        else:
            await peer.send(reply(b"{}"))

    async with raw_server(script) as server, HttpUpstream() as upstream:
        assert await status_of(upstream, *passed("POST", server.url)) == 200
        with pytest.raises(EngineFailed, match="broke off"):
            await status_of(upstream, *passed("POST", server.url))

        assert len(server.requests) == 2


async def test_what_only_reads_is_sent_again_as_a_call_is() -> None:
    async with raw_server(stale(Peer.close)) as server, HttpUpstream() as upstream:
        await upstream.ask(leg(server.url), CALL)
        assert await status_of(upstream, *passed("GET", server.url)) == 200

        assert [request.connection for request in server.requests] == [0, 0, 1]


async def test_a_fresh_connection_is_not_tried_twice() -> None:
    async with raw_server(Peer.close) as server, HttpUpstream() as upstream:
        with pytest.raises(EngineFailed, match="broke off"):
            await upstream.ask(leg(server.url), CALL)

        assert len(server.requests) == 1


async def test_the_second_try_is_the_last() -> None:
    async def script(peer: Peer) -> None:
        if len(server.requests) == 1:
            await peer.send(reply(b"{}"))
        else:
            await peer.close()

    async with raw_server(script) as server, HttpUpstream() as upstream:
        await upstream.ask(leg(server.url), CALL)
        with pytest.raises(EngineFailed, match="broke off"):
            await upstream.ask(leg(server.url), CALL)

        assert len(server.requests) == 3


async def test_one_byte_of_an_answer_forbids_another_try() -> None:
    """The engine had begun: sending again would double its work."""

    async def half(peer: Peer) -> None:
        await peer.send(b"H")
        await peer.close()

    async with raw_server(stale(half)) as server, HttpUpstream() as upstream:
        await upstream.ask(leg(server.url), CALL)
        with pytest.raises(EngineFailed, match="broke off"):
            await upstream.ask(leg(server.url), CALL)

        assert len(server.requests) == 2


async def test_an_engine_that_died_under_a_call_did_not_refuse_it() -> None:
    """ "Refused" promises that nothing was sent, and KV may be held now."""
    async with HttpUpstream() as upstream:
        closed = asyncio.Event()

        async def script(peer: Peer) -> None:
            if len(server.requests) == 1:
                await peer.send(reply(b"{}"))
                return
            server.stop()
            closed.set()
            await peer.close()

        async with raw_server(script) as server:
            await upstream.ask(leg(server.url), CALL)
            with pytest.raises(EngineFailed) as caught:
                await upstream.ask(leg(server.url), CALL)
            assert type(caught.value) is EngineFailed
            assert closed.is_set()


async def test_an_idle_connection_is_closed_before_the_engine_does() -> None:
    gone = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.send(reply(b"{}"))
        await peer.gone()
        gone.set()

    settings = UpstreamSettings(keep_idle_seconds=0.2)
    async with raw_server(script) as server, HttpUpstream(settings) as upstream:
        await upstream.ask(leg(server.url), CALL)
        async with asyncio.timeout(PATIENCE_SECONDS):
            await gone.wait()
        assert upstream.connections == 0


async def test_one_that_was_in_use_when_the_others_were_looked_at_is_closed_as_well() -> None:
    gone = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.send(reply(b"{}"))
        await peer.gone()
        gone.set()

    settings = UpstreamSettings(keep_idle_seconds=0.2)
    async with raw_server(script) as server, HttpUpstream(settings) as upstream:
        await upstream.ask(leg(server.url), CALL)
        (pool,) = upstream._pools.values()
        connection = pool.take()
        assert connection is not None
        # What the clock does when the time has come: it watches no more.
        upstream.deadlines.forget(pool)
        pool.expired()
        assert not upstream.deadlines._watched
        connection._finish(reusable=True)
        async with asyncio.timeout(PATIENCE_SECONDS):
            await gone.wait()
        assert upstream.connections == 0


async def test_a_connection_that_the_engine_closed_is_not_taken() -> None:
    async def script(peer: Peer) -> None:
        await peer.send(reply(b"{}"))
        await peer.close()

    async with raw_server(script) as server, HttpUpstream() as upstream:
        await upstream.ask(leg(server.url), CALL)
        (pool,) = upstream._pools.values()
        # Another one under way keeps the pool, with the closed one still in its list.
        (connection,) = pool.live
        spare = await pool.connect(1)
        await connection.closed
        assert pool.take() is None
        spare.abort()
        assert await upstream.ask(leg(server.url), CALL) == {}


async def test_a_connection_past_its_limit_is_not_taken() -> None:
    async with (
        raw_server(lambda peer: peer.send(reply(b"{}"))) as server,
        HttpUpstream(UpstreamSettings(keep_idle_seconds=0)) as upstream,
    ):
        await upstream.ask(leg(server.url), CALL)
        await upstream.ask(leg(server.url), CALL)

        assert [request.connection for request in server.requests] == [0, 1]


async def test_the_connection_used_last_is_used_next() -> None:
    both = asyncio.Barrier(2)

    async def script(peer: Peer) -> None:
        if len(server.requests) <= 2:
            await both.wait()
        await peer.send(reply(b"{}"))

    async with raw_server(script) as server, HttpUpstream() as upstream:
        async with asyncio.TaskGroup() as group:
            group.create_task(upstream.ask(leg(server.url), CALL))
            group.create_task(upstream.ask(leg(server.url), CALL))
        for _ in range(4):
            await upstream.ask(leg(server.url), CALL)

        assert len({request.connection for request in server.requests[2:]}) == 1


async def test_ranks_behind_one_url_share_connections() -> None:
    async with (
        raw_server(lambda peer: peer.send(reply(b"{}"))) as server,
        HttpUpstream() as upstream,
    ):
        await upstream.ask(leg(server.url, "rank0"), CALL)
        await upstream.ask(leg(server.url, "rank1"), CALL)

        assert server.connections == 1


async def test_an_unfinished_answer_does_not_go_back() -> None:
    async def script(peer: Peer) -> None:
        if peer.request.connection == 0:
            await peer.send(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n", chunk(b"x"))
        else:
            await peer.send(reply(b"{}"))

    async with raw_server(script) as server, HttpUpstream() as upstream:
        async with upstream.open(leg(server.url), CALL) as answer:
            await answer.ready()
        assert await upstream.ask(leg(server.url), CALL) == {}
        assert [request.connection for request in server.requests] == [0, 1]


async def test_what_has_no_connection_is_forgotten() -> None:
    """Fleets change for months; dead addresses must not add up."""

    async def script(peer: Peer) -> None:
        await peer.send(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")

    async with raw_server(script) as server, HttpUpstream() as upstream:
        async with upstream.open(leg(server.url), CALL):
            (pool,) = upstream._pools.values()
            (connection,) = pool.live
        await connection.closed

        assert not upstream._pools
