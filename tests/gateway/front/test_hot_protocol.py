"""What a connection does with time, with memory, and with an application that errs."""

import asyncio

import pytest

from pdgate.gateway import memory_limit, turns
from pdgate.gateway.config.api_keys import ApiKeyEntry
from pdgate.gateway.front import crowd, limits
from pdgate.gateway.front.crowd import Crowd
from pdgate.gateway.front.hot_protocol import HotProtocol
from pdgate.gateway.security.keys import hash_of
from pdgate.protocols.call import CHAT
from pdgate.protocols.errors import GatewayError, OutOfMemory
from pdgate.protocols.instance import Role
from tests.support.fleet import (
    ANSWER,
    JSON_TYPE,
    PATIENCE_SECONDS,
    Engine,
    Gateway,
    as_json,
    ask,
    gateway_of,
)
from tests.support.raw_server import Peer
from tests.support.waiting import until

HALF = b"POST %b HTTP/1.1\r\nhost: g\r\n%b\r\ncontent-length: 100\r\n\r\n{"


@pytest.fixture(autouse=True)
def looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crowd, "LOOK_SECONDS", 0.05)


async def said_to(gateway: Gateway, request: bytes) -> bytes:
    """Everything up to the end of the connection, which the gateway closes."""
    reader, writer = await gateway.wire()
    writer.write(request)
    async with asyncio.timeout(PATIENCE_SECONDS):
        return await reader.read()


@pytest.mark.parametrize("path", [CHAT.encode(), b"/health"])
@pytest.mark.parametrize("limit", ["BODY_SECONDS", "BODY_GRACE_SECONDS"])
async def test_a_body_that_does_not_come_is_not_waited_for(
    path: bytes, limit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In all, or at the least pace; on any route, also where the application answers before."""
    async with gateway_of(Engine(Role.PLAIN)) as gateway:
        with monkeypatch.context() as brief:
            brief.setattr(limits, limit, 0.1)
            brief.setattr(limits, "LINGER_SECONDS", 0.1)
            answer = await said_to(gateway, HALF % (path, JSON_TYPE))

        assert answer.startswith(b"HTTP/1.1 408 " if path == CHAT.encode() else b"HTTP/1.1 405 ")
        assert answer.count(b"HTTP/1.1 ") == 1
        assert (await gateway.chat()).status_code == 200


async def test_a_client_lost_before_its_call_has_begun_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In the same turn of the loop as its request, as where the answer before it cannot be written."""
    taken, lost = HotProtocol.data_received, list[HotProtocol]()

    def takes_and_loses(connection: HotProtocol, data: bytes) -> None:
        taken(connection, data)
        connection.connection_lost(None)
        lost.append(connection)

    async with gateway_of(Engine(Role.PLAIN)) as gateway:
        with monkeypatch.context() as brief:
            brief.setattr(HotProtocol, "data_received", takes_and_loses)
            _, writer = await gateway.wire()
            writer.write(ask())
            await until(lambda: lost, "the request is taken")
        (connection,) = lost
        await until(lambda: not connection.tasks, "its call is over")

        assert connection.held_bytes == 0
        assert connection.crowd.held_bytes == 0
        assert (await gateway.chat()).status_code == 200


async def asks_without_end(writer: asyncio.StreamWriter) -> None:
    while True:
        writer.write(b"GET /metrics HTTP/1.1\r\nhost: g\r\n\r\n" * 50)
        await writer.drain()


async def test_a_client_that_reads_nothing_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "UNREAD_SECONDS", 0.2)
    async with gateway_of(Engine(Role.PLAIN)) as gateway, asyncio.timeout(PATIENCE_SECONDS):
        reader, writer = await gateway.wire()
        reader._transport.pause_reading()  # type: ignore[attr-defined]
        with pytest.raises(ConnectionError):
            await asks_without_end(writer)


async def test_what_comes_early_is_served_up_to_a_bound() -> None:
    """A client asks again for what was not answered when the connection closed."""
    early = b"GET /health HTTP/1.1\r\nhost: g\r\n\r\n" * (limits.MAX_EARLY_REQUESTS + 50)
    async with gateway_of(Engine(Role.PLAIN)) as gateway:
        answer = await said_to(gateway, early)

    assert answer.count(b"HTTP/1.1 200 ") == limits.MAX_EARLY_REQUESTS + 1
    assert answer.count(b"\r\nconnection: close\r\n") == 1


async def test_more_than_one_slice_of_early_requests_is_answered_in_order() -> None:
    """What does not fit into a slice waits as it came."""
    count = 2 * limits.SLICE_BYTES // len(ask()) + 3
    async with gateway_of(Engine(Role.PLAIN)) as gateway:
        answer = await said_to(gateway, ask() * count + ask(b"connection: close"))

    assert answer.count(b"HTTP/1.1 200 ") == count + 1


async def test_the_rest_of_a_body_that_came_early_is_not_left_behind() -> None:
    """More than a slice comes while a call is served, and too little to stop reading."""
    asked, release = asyncio.Event(), asyncio.Event()

    async def answers(peer: Peer) -> None:
        asked.set()
        await release.wait()
        await peer.send(as_json(ANSWER))

    padded = ask(user="x" * 4000)
    count = 2 * limits.SLICE_BYTES // len(padded)
    assert len(padded) * count < limits.MAX_EARLY_BYTES
    async with (
        gateway_of(Engine(Role.PLAIN, answers)) as gateway,
        asyncio.timeout(PATIENCE_SECONDS),
    ):
        reader, writer = await gateway.wire()
        writer.write(ask())
        await asked.wait()
        writer.write(padded * count + ask(b"connection: close"))
        # Behind that, on the same event loop, the gateway has read it.
        assert (await gateway.http.get("/health")).status_code == 200
        release.set()

        assert (await reader.read()).count(b"HTTP/1.1 200 ") == count + 2


async def test_refusals_of_one_read_are_spread_over_turns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As many as a slice has in each: others have theirs between."""
    refused = b"POST %b HTTP/1.1\r\ncontent-length:0\r\n\r\n" % CHAT.encode()
    count = 20 * limits.SLICE_BYTES // len(refused)
    loop, most, begun, seen = asyncio.get_running_loop(), 0, 0, 0
    begin = HotProtocol.on_message_begin

    def counted(connection: HotProtocol) -> None:
        nonlocal begun
        begun += 1
        begin(connection)

    def look() -> None:
        nonlocal most, seen
        most, seen = max(most, begun - seen), begun
        if seen <= count:
            loop.call_soon(look)

    monkeypatch.setattr(HotProtocol, "on_message_begin", counted)
    monkeypatch.setattr(turns, "TURN_SECONDS", 0.0)
    key = ApiKeyEntry(name="a", sha256=hash_of(b"secret"))
    async with gateway_of(Engine(Role.PLAIN), api_keys=(key,)) as gateway:
        look()
        answer = await said_to(gateway, refused * count + ask(b"connection: close"))

    assert answer.count(b"HTTP/1.1 401 ") == count + 1
    # The end of one read and the beginning of the next may come in the same turn.
    assert most <= 2 * (limits.SLICE_BYTES // len(refused) + 1)


@pytest.mark.parametrize("framing", [b"content-length: 2000", b"transfer-encoding: chunked"])
async def test_a_body_for_which_there_is_no_memory_is_refused_and_others_are_served(
    framing: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before it is read, or where its length was not said as soon as it is too much."""
    monkeypatch.setattr(memory_limit, "LEAST_BYTES", 1000)
    head = b"POST %b HTTP/1.1\r\nhost: g\r\n%b\r\n%b\r\n\r\n" % (CHAT.encode(), JSON_TYPE, framing)
    async with (
        gateway_of(Engine(Role.PLAIN), max_memory_bytes=1) as gateway,
        asyncio.timeout(PATIENCE_SECONDS),
    ):
        reader, writer = await gateway.wire()
        writer.write(head + (b"7d0\r\n" + b" " * 2000 if b"chunked" in framing else b""))
        answer = await reader.readuntil(b"}}")

        assert answer.startswith(b"HTTP/1.1 503 ")
        assert b"\r\nretry-after: 1\r\n" in answer
        assert b'"code":"gateway_out_of_memory"' in answer
        for _ in range(3):
            assert (await gateway.chat()).status_code == 200


CHUNKS = b"7d0\r\n" + b" " * 2000 + b"\r\n"


async def test_what_is_still_sent_of_a_refused_body_is_read_and_not_parsed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The client is not cut off while it sends, and has the time to read why."""
    monkeypatch.setattr(memory_limit, "LEAST_BYTES", 1000)
    pieces, on_body = 0, HotProtocol.on_body

    def counted(connection: HotProtocol, body: bytes) -> None:
        nonlocal pieces
        pieces += 1
        on_body(connection, body)

    # Before there is a parser, which looks them up once.
    monkeypatch.setattr(HotProtocol, "on_body", counted)
    async with (
        gateway_of(Engine(Role.PLAIN), max_memory_bytes=1) as gateway,
        asyncio.timeout(PATIENCE_SECONDS),
    ):
        reader, writer = await gateway.wire()
        writer.write(
            b"POST %b HTTP/1.1\r\nhost: g\r\n%b\r\ntransfer-encoding: chunked\r\n\r\n"
            % (CHAT.encode(), JSON_TYPE)
            + CHUNKS
        )
        answer = await reader.readuntil(b"}}")
        before = pieces
        for _ in range(1000):
            writer.write(CHUNKS)
            await writer.drain()
        # Behind that, on the same event loop.
        assert (await gateway.chat()).status_code == 200

    assert answer.startswith(b"HTTP/1.1 503 ")
    assert pieces == before + 1, "the bystander's"


async def test_a_refused_body_of_a_known_length_ends_its_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As soon as it is over; it gave way when others had come."""
    monkeypatch.setattr(limits, "BODY_GRACE_SECONDS", 0.1)
    monkeypatch.setattr(limits, "BODY_BYTES_PER_SECOND", 1 << 30)
    async with gateway_of(Engine(Role.PLAIN)) as gateway, asyncio.timeout(PATIENCE_SECONDS):
        reader, writer = await gateway.wire()
        writer.write(HALF % (CHAT.encode(), JSON_TYPE))
        answer = await reader.readuntil(b"}}")
        # That is 98 of 100 bytes, and the connection is there.
        writer.write(b" " * 97)
        assert (await gateway.chat()).status_code == 200
        assert not reader.at_eof()
        writer.write(b"  ")
        began = asyncio.get_running_loop().time()
        assert await reader.read() == b""
        waited = asyncio.get_running_loop().time() - began

    assert answer.startswith(b"HTTP/1.1 408 ")
    assert waited < limits.LINGER_SECONDS


async def sends_without_end(writer: asyncio.StreamWriter) -> None:
    while True:
        writer.write(CHUNKS)
        await writer.drain()


async def test_a_client_that_neither_reads_its_refusal_nor_stops_is_cut(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Reading goes on while it lingers, so that its end, or that it takes too long, is seen."""
    monkeypatch.setattr(memory_limit, "LEAST_BYTES", 1000)
    monkeypatch.setattr(limits, "LINGER_SECONDS", 0.2)
    async with (
        gateway_of(Engine(Role.PLAIN), max_memory_bytes=1) as gateway,
        asyncio.timeout(PATIENCE_SECONDS),
    ):
        reader, writer = await gateway.wire()
        reader._transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(
            b"POST %b HTTP/1.1\r\nhost: g\r\n%b\r\ntransfer-encoding: chunked\r\n\r\n"
            % (CHAT.encode(), JSON_TYPE)
        )
        with pytest.raises(ConnectionError):
            await sends_without_end(writer)


async def test_what_a_client_that_has_left_has_sent_is_not_parsed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It closed with an answer unread, which resets the connection; a megabyte of chunks is read already."""
    monkeypatch.setattr(turns, "TURN_SECONDS", 0.0)
    two_bytes, count = b"2\r\n  \r\n", 150_000
    pieces, on_body, left = 0, HotProtocol.on_body, asyncio.Event()
    gone = HotProtocol.connection_lost

    def counted(connection: HotProtocol, body: bytes) -> None:
        nonlocal pieces
        pieces += 1
        on_body(connection, body)
        if pieces == 1:
            writer.transport.abort()

    def lost(connection: HotProtocol, error: Exception | None) -> None:
        gone(connection, error)
        left.set()

    monkeypatch.setattr(HotProtocol, "on_body", counted)
    monkeypatch.setattr(HotProtocol, "connection_lost", lost)
    async with gateway_of(Engine(Role.PLAIN)) as gateway, asyncio.timeout(PATIENCE_SECONDS):
        reader, writer = await gateway.wire()
        reader._transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(b"GET /health HTTP/1.1\r\nhost: g\r\n\r\n")
        # On the same event loop, so its answer is in the client's socket, unread.
        assert (await gateway.http.get("/health")).status_code == 200
        left.clear()
        writer.write(
            b"POST %b HTTP/1.1\r\nhost: g\r\n%b\r\ntransfer-encoding: chunked\r\n\r\n"
            % (CHAT.encode(), JSON_TYPE)
            + two_bytes * count
        )
        await left.wait()

    # Of a first read of 256 KiB, 37,000 pieces, two slices.
    assert 0 < pieces <= 2 * limits.SLICE_BYTES // len(two_bytes)


async def test_a_head_weighs_what_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundred short headers are 900 bytes on the wire, and 20 KB here."""
    lines = b"".join(b"a%02d: 1\r\n" % number for number in range(100))
    async with gateway_of(Engine(Role.PLAIN)) as gateway:
        with monkeypatch.context() as little:
            little.setattr(crowd, "LOOSE_BYTES", 10_000)

            assert await said_to(gateway, b"GET / HTTP/1.1\r\n" + lines) == b""
        assert (await gateway.chat()).status_code == 200


async def test_early_requests_weigh_what_they_take(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ninety of them are 3 KB on the wire, and 130 KB here."""
    early = b"GET /health HTTP/1.1\r\nhost: g\r\n\r\n" * 90
    async with gateway_of(Engine(Role.PLAIN)) as gateway:
        with monkeypatch.context() as little:
            little.setattr(crowd, "LOOSE_BYTES", 60_000)

            assert await said_to(gateway, early) == b""
        assert (await gateway.chat()).status_code == 200


class Member:
    """One that only holds."""

    def __init__(self, *, yields: bool = True) -> None:
        self.loose_bytes = self.held_bytes = 0
        self.yields = yields
        self.ended: GatewayError | str = ""
        self.crowd: Crowd

    def look(self, now: float) -> None: ...

    def cut(self) -> None:
        self.ended = "cut"
        self.crowd.now_loose(self, 0)

    def yield_memory(self, error: GatewayError) -> None:
        self.ended = error
        self.crowd.free(self, self.held_bytes)


async def members(limit_bytes: int, *found: Member) -> Crowd:
    made = Crowd(limit_bytes)
    for member in found:
        member.crowd = made
        made.join(member, asyncio.get_running_loop())
    return made


async def test_the_largest_body_on_its_way_gives_way() -> None:
    calls, small, large = Member(yields=False), Member(), Member()
    held = await members(100, calls, small, large)
    held.hold(calls, 60)
    held.hold(large, 30)
    held.hold(small, 20)

    assert isinstance(large.ended, OutOfMemory)
    assert (calls.ended, small.ended) == ("", "")
    assert held.held_bytes == 80
    with pytest.raises(OutOfMemory):
        held.check_room(21)
    held.check_room(20)


async def test_who_holds_most_loosely_is_cut() -> None:
    few, many = Member(), Member()
    held = await members(100, few, many)
    held.now_loose(few, crowd.LOOSE_BYTES // 4)
    held.now_loose(many, crowd.LOOSE_BYTES // 2)
    held.now_loose(few, crowd.LOOSE_BYTES // 3)
    assert (few.ended, many.ended) == ("", "")

    held.now_loose(many, crowd.LOOSE_BYTES)

    assert (few.ended, many.ended) == ("", "cut")
    assert held.loose_bytes == crowd.LOOSE_BYTES // 3
