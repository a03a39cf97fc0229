"""What each fault looks like from both sides, byte by byte, on real sockets."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TypeAlias

import pytest

from pdgate.lab.chaos import (
    Corrupt,
    Cut,
    Delay,
    Fault,
    FaultProxy,
    HalfOpen,
    Refuse,
    Rule,
    SlowReader,
    Stall,
)
from pdgate.lab.chaos.link import Side
from tests.support import waiting
from tests.support.raw_server import Peer, RawServer, raw_server, reply

GIVE_UP_SECONDS = waiting.PATIENCE_SECONDS
ANSWER = reply(b"0123456789" * 100)
ASK = b"POST /v1 HTTP/1.1\r\nhost: e\r\ncontent-length: 4\r\n\r\nhell"
PROBE = b"GET /health HTTP/1.1\r\nhost: e\r\n\r\n"

Wire: TypeAlias = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Bench:
    """An engine that always answers the same, a proxy before it, and connections to that."""

    def __init__(self, engine: RawServer, proxy: FaultProxy, stack: AsyncExitStack) -> None:
        self.engine = engine
        self.proxy = proxy
        self._stack = stack

    async def connect(self) -> Wire:
        host, port = self.proxy.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        self._stack.callback(writer.close)
        return reader, writer

    async def asks(self, what: bytes = ASK) -> Wire:
        wire = await self.connect()
        wire[1].write(what)
        return wire


@asynccontextmanager
async def bench() -> AsyncIterator[Bench]:
    async def script(peer: Peer) -> None:
        await peer.send(ANSWER)

    async with asyncio.timeout(GIVE_UP_SECONDS), AsyncExitStack() as stack:
        engine = await stack.enter_async_context(raw_server(script))
        proxy = await stack.enter_async_context(FaultProxy(engine.url))
        yield Bench(engine, proxy, stack)


async def whole(wire: Wire) -> bytes:
    return await wire[0].readexactly(len(ANSWER))


async def silent(reader: asyncio.StreamReader) -> bool:
    """Neither a byte nor an end comes, once everything else that was to happen has."""
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await reader.read(1)
    return True


async def test_without_a_plan_everything_passes() -> None:
    async with bench() as it:
        wire = await it.asks()
        assert await whole(wire) == ANSWER
        wire[1].write(ASK)
        assert await whole(wire) == ANSWER

        assert [request.body for request in it.engine.requests] == [b"hell", b"hell"]
        assert it.proxy.journal.as_json() == {
            "connections": 1,
            "numbered": 2,
            "injected": {},
            "missed": {},
            "engine_unreachable": 0,
        }


async def test_a_refused_connection_is_reset_and_the_engine_hears_nothing() -> None:
    async with bench() as it:
        with it.proxy.plan(Rule(Refuse())):
            reader, _ = await it.asks()
            with pytest.raises(ConnectionResetError):
                await reader.read()

        assert it.engine.connections == 0


async def test_a_request_on_a_kept_connection_is_refused_as_well() -> None:
    async with bench() as it:
        with it.proxy.plan(Rule(Refuse(), first=2)):
            reader, writer = wire = await it.asks()
            await whole(wire)
            writer.write(ASK)
            with pytest.raises(ConnectionResetError):
                await reader.read()

        assert len(it.engine.requests) == 1


async def test_a_proxy_ends_while_it_still_dials() -> None:
    """An address that swallows connections would hold it up for minutes."""
    dialling = asyncio.Event()

    class Dials(FaultProxy):
        async def dial(self, far: Side) -> None:
            dialling.set()
            await asyncio.Event().wait()

    async with (
        asyncio.timeout(GIVE_UP_SECONDS),
        AsyncExitStack() as stack,
        Dials("http://127.0.0.1:1") as proxy,
    ):
        host, port = proxy.url.removeprefix("http://").split(":")
        _, writer = await asyncio.open_connection(host, int(port))
        stack.callback(writer.close)
        writer.write(ASK)
        await dialling.wait()


async def test_nobody_listens_while_the_proxy_is_away() -> None:
    async with bench() as it:
        open_one = await it.asks()
        await whole(open_one)
        async with it.proxy.away():
            with pytest.raises(ConnectionRefusedError):
                await it.connect()
            assert await open_one[0].read() == b""

        assert await whole(await it.asks()) == ANSWER


async def test_a_delayed_answer_is_late_and_whole() -> None:
    async with bench() as it:
        loop = asyncio.get_running_loop()
        with it.proxy.plan(Rule(Delay(0.2))):
            began = loop.time()
            assert await whole(await it.asks()) == ANSWER

        assert loop.time() - began >= 0.2


@pytest.mark.parametrize("after_bytes", [0, 1, 500])
async def test_a_cut_answer_ends_after_so_many_bytes(after_bytes: int) -> None:
    async with bench() as it:
        with it.proxy.plan(Rule(Cut(after_bytes))):
            reader, _ = await it.asks()

            assert await reader.read() == ANSWER[:after_bytes]


async def test_a_cut_by_reset_is_a_reset() -> None:
    async with bench() as it:
        with it.proxy.plan(Rule(Cut(100, reset=True))):
            reader, _ = await it.asks()
            assert await reader.readexactly(100) == ANSWER[:100]
            with pytest.raises(ConnectionResetError):
                await reader.read()


async def test_an_answer_that_is_shorter_than_the_cut_is_whole_and_counts_as_missed() -> None:
    async with bench() as it:
        with it.proxy.plan(Rule(Cut(len(ANSWER)))):
            wire = await it.asks()
            assert await whole(wire) == ANSWER
            wire[1].close()
            async with it.proxy.away():
                pass

        assert it.proxy.journal.missed == {"cut": 1}
        assert it.proxy.journal.injected == {}


@pytest.mark.parametrize("fault", [Stall(100), HalfOpen(100)], ids=["stall", "half_open"])
async def test_a_silent_connection_stays_open(fault: Fault) -> None:
    async with bench() as it:
        with it.proxy.plan(Rule(fault)):
            reader, writer = await it.asks()
            assert await reader.readexactly(100) == ANSWER[:100]

            assert await silent(reader)
            writer.write(ASK)
            assert await silent(reader)

        assert it.proxy.journal.numbered == 1


async def test_a_stalled_engine_still_has_its_connection_and_a_half_open_one_has_not() -> None:
    gone: asyncio.Queue[str] = asyncio.Queue()

    async def script(peer: Peer) -> None:
        await peer.send(ANSWER)
        await peer.gone()
        gone.put_nowait("gone")

    async with (
        asyncio.timeout(GIVE_UP_SECONDS),
        raw_server(script) as engine,
        FaultProxy(engine.url) as proxy,
        AsyncExitStack() as stack,
    ):
        it = Bench(engine, proxy, stack)
        with proxy.plan(Rule(HalfOpen(1), first=1, last=1), Rule(Stall(1))):
            await it.asks()
            assert await gone.get() == "gone"
            _, stalled = await it.asks()
            await proxy.journal.until_injected(2)
            assert gone.empty()
            stalled.close()
            assert await gone.get() == "gone"


async def test_a_corrupted_answer_differs_in_one_bit_and_is_the_same_for_the_same_seed() -> None:
    async with bench() as it:
        answers = []
        for _ in range(2):
            with it.proxy.plan(Rule(Corrupt(50)), seed=3):
                answers.append(await whole(await it.asks()))

        assert answers[0] == answers[1]
        differ = [a ^ b for a, b in zip(answers[0], ANSWER, strict=True)]
        assert [index for index, bits in enumerate(differ) if bits] == [50]
        assert differ[50].bit_count() == 1


async def test_which_bit_is_drawn_with_the_seed() -> None:
    async with bench() as it:
        answers = set()
        for seed in range(8):
            with it.proxy.plan(Rule(Corrupt(50)), seed=seed):
                answers.add(await whole(await it.asks()))

        assert len(answers) > 1


async def test_a_fault_that_happened_is_told_once_and_was_not_missed() -> None:
    async with bench() as it:
        with it.proxy.plan(Rule(SlowReader(len(ASK) * 5))):
            wire = await it.asks(ASK[:10])
            await it.proxy.journal.until_injected(1)
            wire[1].write(ASK[10:])
            await whole(wire)
            async with it.proxy.away():
                pass

        assert it.proxy.journal.injected == {"slow_reader": 1}
        assert it.proxy.journal.missed == {}


async def test_a_slow_reader_takes_its_time_and_gets_everything() -> None:
    async with bench() as it:
        loop = asyncio.get_running_loop()
        with it.proxy.plan(Rule(SlowReader(len(ASK) * 5))):
            began = loop.time()
            assert await whole(await it.asks()) == ANSWER

        assert loop.time() - began >= 0.1
        assert it.engine.requests[0].body == b"hell"
        assert it.proxy.journal.injected == {"slow_reader": 1}


async def test_requests_on_one_connection_are_counted_one_by_one() -> None:
    async with bench() as it:
        with it.proxy.plan(Rule(Cut(), every=3)):
            wire = await it.asks()
            for _ in range(2):
                await whole(wire)
                wire[1].write(ASK)

            assert await wire[0].read() == b""


async def test_connections_are_counted_and_stay_bad_where_that_is_asked_for() -> None:
    async with bench() as it:
        with it.proxy.plan(Rule(Corrupt(), every=2), per="connection"):
            good, bad = await it.asks(), await it.asks()
            for _ in range(2):
                assert await whole(good) == ANSWER
                assert await whole(bad) != ANSWER
                for _, writer in (good, bad):
                    writer.write(ASK)

            assert it.proxy.journal.numbered == 2


async def test_health_checks_are_spared_unless_they_are_meant() -> None:
    async with bench() as it:
        with it.proxy.plan(Rule(Cut())):
            assert await whole(await it.asks(PROBE)) == ANSWER
            assert it.proxy.journal.numbered == 0
        with it.proxy.plan(Rule(Cut()), only=b""):
            reader, _ = await it.asks(PROBE)
            assert await reader.read() == b""


async def test_a_dead_engine_shows_as_a_reset() -> None:
    async with bench() as it:
        it.engine.stop()
        reader, _ = await it.asks()
        with pytest.raises(ConnectionResetError):
            await reader.read()

        assert it.proxy.journal.unreachable == 1


async def test_either_sides_end_ends_the_other() -> None:
    async def script(peer: Peer) -> None:
        await peer.send(ANSWER)
        await peer.close()

    async with (
        asyncio.timeout(GIVE_UP_SECONDS),
        raw_server(script) as engine,
        FaultProxy(engine.url) as proxy,
        AsyncExitStack() as stack,
    ):
        reader, _ = await Bench(engine, proxy, stack).asks()

        assert await reader.read() == ANSWER


@pytest.mark.parametrize(
    "engine", ["https://e:1", "e:1", "http://e", "http://e:1/v1", "http://u@e:1"]
)
def test_an_engine_is_an_address_and_nothing_else(engine: str) -> None:
    with pytest.raises(ValueError, match="http://host:port"):
        FaultProxy(engine)


async def test_who_is_accepted_as_the_proxy_goes_away_keeps_it_from_nothing() -> None:
    """asyncio asks for its protocol, and then makes no connection of it."""
    async with bench() as it:
        async with it.proxy.away():
            it.proxy._accept()
        async with it.proxy.away():
            pass
