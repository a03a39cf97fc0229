"""Connections over TLS, from when they are accepted: what strangers make them hold, and for how long."""

import asyncio
import gc
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import suppress

import pytest
import uvloop

from pdgate.gateway.config.sections import TlsSection
from pdgate.gateway.front import crowd, limits
from pdgate.gateway.front.hot_protocol import TLS_BYTES
from pdgate.gateway.front.socket_client import SocketClient
from pdgate.gateway.security.tls import MAX_HANDSHAKE_BYTES, BoundedObject
from pdgate.protocols.call import CHAT
from pdgate.protocols.instance import Role
from tests.support.certificates import Authority
from tests.support.fleet import PATIENCE_SECONDS, Engine, Gateway, ask, gateway_of
from tests.support.waiting import until

HELLO = b"\x16\x03\x01\x40\x00\x01\x01\xff\x00\x03\x03" + b"a" * 16378
MORE = b"\x16\x03\x01\x40\x00" + b"a" * 16384
"""Records of a hello of 128 KiB."""

HEALTH = b"GET /health HTTP/1.1\r\nhost: g\r\n\r\n"
OPENAPI = b"GET /openapi.json HTTP/1.1\r\nhost: g\r\n\r\n"


@pytest.fixture(autouse=True)
def looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crowd, "LOOK_SECONDS", 0.05)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
def tls(authority: Authority) -> TlsSection:
    ours = authority.signs("pdgate", "IP:127.0.0.1")
    return TlsSection(cert_file=ours.cert, key_file=ours.key)


@pytest.fixture
async def gateway(tls: TlsSection) -> AsyncIterator[Gateway]:
    async with gateway_of(Engine(Role.PLAIN), tls=tls) as made:
        yield made


@pytest.fixture
def trusting(authority: Authority) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=authority.cert)


async def answer(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    """Head and body."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().split(b"content-length: ")[1].split()[0])
        return head, await reader.readexactly(length)


async def is_served(gateway: Gateway, tls: ssl.SSLContext) -> bool:
    reader, writer = await gateway.wire_over(tls)
    writer.write(ask())
    return (await answer(reader))[0].startswith(b"HTTP/1.1 200 ")


async def is_hung_up_on(reader: asyncio.StreamReader) -> bool:
    with suppress(ConnectionError):
        async with asyncio.timeout(PATIENCE_SECONDS):
            await reader.read()
    return True


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_a_modern_client_of_either_version_is_served(
    gateway: Gateway, trusting: ssl.SSLContext, version: ssl.TLSVersion
) -> None:
    trusting.minimum_version = trusting.maximum_version = version

    assert await is_served(gateway, trusting)


async def test_a_handshake_that_does_not_end_is_not_waited_for(
    gateway: Gateway, trusting: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as brief:
        brief.setattr(limits, "HANDSHAKE_SECONDS", 0.1)
        for beginning in (b"", HELLO):
            reader, writer = await gateway.wire()
            writer.write(beginning)
            assert await is_hung_up_on(reader)

    assert await is_served(gateway, trusting)


async def test_a_handshake_of_too_many_bytes_fails(
    gateway: Gateway, trusting: ssl.SSLContext
) -> None:
    reader, writer = await gateway.wire()
    writer.write(HELLO + MORE * (MAX_HANDSHAKE_BYTES // len(MORE)))

    assert await is_hung_up_on(reader)
    assert await is_served(gateway, trusting)


async def test_a_long_request_may_come_in_one_read_with_the_end_of_its_handshake(
    gateway: Gateway, trusting: ssl.SSLContext
) -> None:
    """As of clients that write before they wait; the request is more than a handshake may have."""
    reader, writer = await gateway.wire()
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = trusting.wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
    while True:
        try:
            tls.do_handshake()
            break
        except ssl.SSLWantReadError:
            writer.write(outgoing.read())
            incoming.write(await reader.read(1 << 16))
    tls.write(ask(user="a" * 100_000))
    writer.write(outgoing.read())

    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            with suppress(ssl.SSLWantReadError):
                head = tls.read(1 << 16)
                break
            incoming.write(await reader.readexactly(1))
    assert head.startswith(b"HTTP/1.1 200 ")


async def test_a_handshake_that_failed_leaves_nothing_behind(gateway: Gateway) -> None:
    """Until Python looks for circles: TLS and its buffers are 400 KB."""
    gc.collect()
    gc.disable()
    try:
        before = sum(isinstance(one, BoundedObject) for one in gc.get_objects())
        for _ in range(5):
            reader, writer = await gateway.wire()
            writer.write(HELLO + MORE * (MAX_HANDSHAKE_BYTES // len(MORE)))
            assert await is_hung_up_on(reader)
        left = sum(isinstance(one, BoundedObject) for one in gc.get_objects())
    finally:
        gc.enable()

    assert left - before <= 1


async def test_the_oldest_of_too_many_handshakes_gives_way(
    gateway: Gateway, trusting: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(crowd, "MOST_HANDSHAKES", 2)
    oldest, _ = await gateway.wire()
    await asyncio.sleep(0.05)
    others = [(await gateway.wire())[0] for _ in range(2)]

    assert await is_hung_up_on(oldest)
    assert not any(reader.at_eof() for reader in others)
    assert await is_served(gateway, trusting)


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_of_many_that_come_at_once_all_are_served(
    tls: TlsSection,
    trusting: ssl.SSLContext,
    monkeypatch: pytest.MonkeyPatch,
    run: Callable[[Coroutine[None, None, None]], None],
) -> None:
    """A loop accepts hundreds in one turn, and none of them has been read by then."""
    monkeypatch.setattr(crowd, "MOST_HANDSHAKES", 2)

    async def come_at_once() -> None:
        async with gateway_of(Engine(Role.PLAIN), tls=tls) as gateway:
            async with asyncio.TaskGroup() as group:
                served = [group.create_task(is_served(gateway, trusting)) for _ in range(20)]
            assert all(one.result() for one in served)

    run(come_at_once())


async def test_who_waits_is_hung_up_on_when_the_time_for_its_handshake_is_over(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(crowd, "MOST_HANDSHAKES", 1)
    monkeypatch.setattr(limits, "HANDSHAKE_SECONDS", 0.2)
    waiting = [(await gateway.wire())[0] for _ in range(3)]

    for reader in waiting:
        assert await is_hung_up_on(reader)


async def test_of_too_many_that_wait_the_oldest_handshake_gives_way_at_once(
    gateway: Gateway, trusting: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(crowd, "MOST_HANDSHAKES", 1)
    monkeypatch.setattr(crowd, "MOST_WAITING", 1)
    monkeypatch.setattr(crowd, "PATIENCE_SECONDS", 1000.0)
    silent, _ = await gateway.wire()
    await asyncio.sleep(0.05)

    assert await is_served(gateway, trusting)
    assert await is_hung_up_on(silent)


async def test_the_oldest_stranger_gives_way_and_no_caller_that_was_let_in(
    gateway: Gateway, trusting: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(crowd, "STRANGE_BYTES", 2 * TLS_BYTES)
    called, calling = await gateway.wire_over(trusting)
    calling.write(ask())
    await answer(called)
    strangers = []
    for _ in range(3):
        reader, writer = await gateway.wire_over(trusting)
        writer.write(HEALTH)
        await answer(reader)
        strangers.append(reader)

    assert await is_hung_up_on(strangers[0])
    assert not any(reader.at_eof() for reader in strangers[1:])
    calling.write(ask())
    assert (await answer(called))[0].startswith(b"HTTP/1.1 200 ")


async def test_who_has_sent_much_at_once_weighs_more(
    gateway: Gateway, trusting: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The buffers stay as large."""
    monkeypatch.setattr(crowd, "STRANGE_BYTES", 2 * TLS_BYTES + limits.SLICE_BYTES)
    small, _ = await gateway.wire_over(trusting)
    large, writer = await gateway.wire_over(trusting)
    writer.write(HEALTH[:-2] + b"x: " + b"y" * 60_000 + b"\r\n\r\n")

    assert await is_hung_up_on(large)
    assert not small.at_eof()


@pytest.mark.parametrize("path", [CHAT, "/tokenize"])
async def test_a_caller_that_is_let_in_gives_way_to_no_strangers(
    gateway: Gateway, trusting: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    """As many as there may be are there, and its first read is long."""
    monkeypatch.setattr(crowd, "STRANGE_BYTES", 3 * TLS_BYTES)
    idle = [(await gateway.wire_over(trusting))[0] for _ in range(2)]
    reader, writer = await gateway.wire_over(trusting)
    writer.write(ask(user="a" * 100_000).replace(CHAT.encode(), path.encode(), 1))

    assert (await answer(reader))[0].startswith(b"HTTP/1.1 ")
    assert not any(one.at_eof() for one in idle)


UPGRADE = (
    b"GET /v1/realtime?model=m HTTP/1.1\r\nhost: g\r\nconnection: Upgrade\r\nupgrade: websocket\r\n"
    b"sec-websocket-version: 13\r\nsec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
)


async def test_a_refused_websocket_is_a_stranger_until_its_connection_is_lost(
    gateway: Gateway, trusting: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its client reads no end of TLS, for which the gateway waits."""
    monkeypatch.setattr(crowd, "STRANGE_BYTES", 2 * TLS_BYTES + limits.SLICE_BYTES)
    small, _ = await gateway.wire_over(trusting)
    large, writer = await gateway.wire_over(trusting)
    writer.write(UPGRADE + b"x: " + b"y" * 60_000 + b"\r\n\r\n")

    assert await is_hung_up_on(large)
    assert not small.at_eof()


async def test_a_refused_websocket_leaves_nothing_behind(
    gateway: Gateway, trusting: ssl.SSLContext
) -> None:
    """Until Python looked for circles TLS had its buffers: 1,200 that had left took 280 MB."""

    def there() -> int:
        return sum(isinstance(one, SocketClient) for one in gc.get_objects())

    gc.collect()
    gc.disable()
    try:
        before = there()
        for _ in range(3):
            reader, writer = await gateway.wire_over(trusting)
            writer.write(UPGRADE.replace(b"model=m", b"model=unknown") + b"\r\n")
            assert (await reader.readline()).startswith(b"HTTP/1.1 404 ")
            writer.transport.abort()
        await until(lambda: there() <= before, "none of them is left")
    finally:
        gc.enable()


async def test_unread_answers_are_counted(
    gateway: Gateway, trusting: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(crowd, "LOOSE_BYTES", 100_000)
    reader, writer = await gateway.wire_over(trusting)
    reader._transport.pause_reading()  # type: ignore[attr-defined]

    def is_cut() -> bool:
        if not writer.transport.is_closing():
            writer.write(OPENAPI * 3)
        return writer.transport.is_closing()

    await until(is_cut, "it is cut")


async def test_a_long_answer_is_whole(gateway: Gateway, trusting: ssl.SSLContext) -> None:
    reader, writer = await gateway.wire_over(trusting)
    bodies = []
    for _ in range(2):
        writer.write(OPENAPI)
        bodies.append((await answer(reader))[1])

    assert len(bodies[0]) > limits.TLS_BUFFER_BYTES
    assert bodies[0] == bodies[1]
    assert bodies[0].startswith(b"{")
    assert bodies[0].endswith(b"}")


def test_a_request_that_comes_with_the_last_of_its_handshake_is_served_on_asyncios_loop(
    tls: TlsSection, trusting: ssl.SSLContext
) -> None:
    """It hands on what came before it says that the handshake is over."""

    async def served() -> bool:
        async with gateway_of(Engine(Role.PLAIN), tls=tls) as gateway:
            return await is_served(gateway, trusting)

    assert asyncio.run(served())


async def test_a_handshake_under_way_when_the_server_ends_does_not_keep_it(
    gateway: Gateway,
) -> None:
    reader, _ = await gateway.wire()
    await asyncio.sleep(0.05)
    gateway.leaving.set()

    assert await is_hung_up_on(reader)
