"""How long an engine may be silent, and who is at fault for it."""

import asyncio

import pytest

from pdgate.forwarders.base import Leg
from pdgate.gateway.deadlines import Timeouts
from pdgate.gateway.upstream import HttpUpstream, UpstreamSettings
from pdgate.protocols.call import Call, value
from pdgate.protocols.errors import EngineTooSlow
from pdgate.protocols.instance import Instance, Role
from tests.support.raw_server import Peer, chunk, raw_server, reply
from tests.support.sinks import Collected
from tests.support.waiting import PATIENCE_SECONDS

CALL = Call("id", "attempt", "/v1/completions", {})
FAST = Timeouts(connect_seconds=5, prefill_seconds=0.2, first_byte_seconds=0.2, idle_seconds=0.2)


def leg(url: str, role: Role = Role.PREFILL) -> Leg:
    return Leg(Instance("e0", url, role, "vllm-nixl"), "/v1/completions", {"prompt": "x"})


@pytest.mark.parametrize("role", [Role.PREFILL, Role.DECODE])
async def test_an_engine_that_says_nothing_is_too_slow(role: Role) -> None:
    async with raw_server(Peer.gone) as server, HttpUpstream(UpstreamSettings(FAST)) as upstream:
        with pytest.raises(EngineTooSlow, match=f"the {role} engine took too long") as caught:
            await upstream.ask(leg(server.url, role), CALL)
    assert caught.value.at == "e0"


async def test_roles_have_limits_of_their_own() -> None:
    """Prefill's is over, twice, when decode answers."""
    asked: asyncio.Queue[Peer] = asyncio.Queue()

    async def script(peer: Peer) -> None:
        asked.put_nowait(peer)
        await peer.gone()

    times = Timeouts(prefill_seconds=0.1, first_byte_seconds=PATIENCE_SECONDS)
    async with raw_server(script) as server, HttpUpstream(UpstreamSettings(times)) as upstream:
        decoding = asyncio.create_task(upstream.ask(leg(server.url, Role.DECODE), CALL))
        decode = await asked.get()
        for _ in range(2):
            with pytest.raises(EngineTooSlow):
                await upstream.ask(leg(server.url, Role.PREFILL), CALL)
        await decode.send(reply(b'{"id": "a"}'))

        assert value(await decoding, "id") == "a"


async def says_one(peer: Peer) -> None:
    """A stream's first piece, and nothing more."""
    await peer.send(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n", chunk(b"one"))
    await peer.gone()


async def test_an_engine_that_falls_silent_is_too_slow() -> None:
    settings = UpstreamSettings(Timeouts(idle_seconds=0.2))
    async with (
        raw_server(says_one) as server,
        HttpUpstream(settings) as upstream,
        upstream.open(leg(server.url, Role.DECODE), CALL) as answer,
    ):
        answer.start(sink := Collected())
        with pytest.raises(EngineTooSlow, match="the decode engine fell silent"):
            await sink.body()
        assert sink.chunks == [b"one"]


async def test_a_stream_may_last_longer_than_its_silences() -> None:
    async def script(peer: Peer) -> None:
        await peer.send(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
        for _ in range(30):
            await peer.send(chunk(b"x"))
            await asyncio.sleep(0.1)
        await peer.send(b"0\r\n\r\n")

    settings = UpstreamSettings(Timeouts(idle_seconds=2.0))
    async with (
        raw_server(script) as server,
        HttpUpstream(settings) as upstream,
        upstream.open(leg(server.url), CALL) as answer,
    ):
        answer.start(sink := Collected())
        assert await sink.body() == b"x" * 30


async def test_silence_counts_again_when_the_client_reads_again() -> None:
    settings = UpstreamSettings(Timeouts(idle_seconds=0.2))
    async with (
        raw_server(says_one) as server,
        HttpUpstream(settings) as upstream,
        upstream.open(leg(server.url), CALL) as answer,
    ):
        answer.start(sink := Collected())
        await sink.first.wait()
        answer.pause()
        answer.resume()
        async with asyncio.timeout(PATIENCE_SECONDS):
            with pytest.raises(EngineTooSlow):
                await sink.body()


async def test_a_slow_client_is_not_the_engines_fault() -> None:
    """While we do not read, the engine cannot prove that it lives."""
    wrote_all = asyncio.Event()
    size = 20_000_000

    async def script(peer: Peer) -> None:
        await peer.send(reply(b"x" * size))
        wrote_all.set()

    settings = UpstreamSettings(Timeouts(idle_seconds=2.0))
    async with (
        raw_server(script) as server,
        HttpUpstream(settings) as upstream,
        upstream.open(leg(server.url), CALL) as answer,
    ):
        answer.start(sink := Collected())
        answer.pause()
        await asyncio.sleep(2.5)
        assert not wrote_all.is_set()
        answer.resume()
        assert len(await sink.body()) == size
