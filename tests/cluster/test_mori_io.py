"""MoRI-IO's heartbeats: engines that say where they are are listed, and those that fall silent are not."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
import zmq
import zmq.asyncio

from pdgate.cluster.heartbeats import FORGET_SECONDS, STRANGERS, Heartbeat, HeartbeatDirectory
from pdgate.cluster.member import Member, read
from pdgate.cluster.mori_io import MoriIoDirectory
from pdgate.cluster.polled import Seen, Unseen
from pdgate.protocols.instance import Role
from tests.support.clock import Clock
from tests.support.ports import free_port
from tests.support.waiting import PATIENCE_SECONDS

BEAT: dict[str, Any] = {
    "type": "P",
    "http_address": "10.0.0.1:8100",
    "zmq_address": "host:10.0.0.1,handshake:6301,notify:6105",
    "dp_size": 2,
    "tp_size": 8,
    "transfer_mode": "READ",
}


class Lines(HeartbeatDirectory):
    """Of a protocol of somebody else, whose engines say a line of text."""

    def read(self, message: bytes) -> Heartbeat:
        role, api, kv = message.decode().split()
        return Heartbeat(Role(role), api, {"protocol": "lines", "kv": kv})


class Site:
    def __init__(self, allow: str = "") -> None:
        self.clock = Clock()
        self.at = f"127.0.0.1:{free_port()}"
        self.directory: HeartbeatDirectory = MoriIoDirectory(
            self.clock, listen=self.at, allow=allow
        )
        self._context = zmq.asyncio.Context()
        self._engines: list[zmq.asyncio.Socket] = []

    def engine(self) -> "zmq.asyncio.Socket":
        dealer = self._context.socket(zmq.DEALER)
        dealer.connect(f"tcp://{self.at}")
        self._engines.append(dealer)
        return dealer

    async def seen(self, wanted: Any) -> Seen:
        """The first look of which that holds."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            # ZeroMQ's thread tells nobody that a message is there.
            while not wanted(found := await self.directory.look()):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        return found

    def close(self) -> None:
        self._context.destroy(linger=0)
        self.directory.close()


@asynccontextmanager
async def site(allow: str = "") -> AsyncIterator[Site]:
    made = Site(allow)
    await made.directory.look()
    try:
        yield made
    finally:
        made.close()


def members(seen: Seen) -> list[Member]:
    return [read(key, value) for key, value in seen.entries.items()]


async def test_a_heartbeat_is_an_engine_with_its_ports_and_its_mode() -> None:
    async with site() as made:
        await made.engine().send(msgspec.msgpack.encode(BEAT))

        (found,) = members(await made.seen(lambda seen: seen.entries))

    engine = found.instance()
    assert (engine.role, engine.url) == (Role.PREFILL, "http://10.0.0.1:8100")
    assert (engine.protocol, engine.generation) == ("mori-io", "read")
    assert (engine.kv, engine.kv_notify, engine.dp_size, engine.tp) == ("10.0.0.1:6301", 6105, 2, 8)


async def test_one_that_falls_silent_is_gone_and_one_that_beats_stays() -> None:
    async with site() as made:
        silent, steady = made.engine(), made.engine()
        await silent.send(msgspec.msgpack.encode(BEAT))
        decode = msgspec.msgpack.encode({**BEAT, "type": "D", "http_address": "10.0.0.2:8200"})
        await steady.send(decode)
        await made.seen(lambda seen: len(seen.entries) == 2)

        made.clock.now += FORGET_SECONDS - 1
        await steady.send(decode)
        await made.seen(
            lambda _: any(at == made.clock.now for at, _ in made.directory._heard.values())
        )
        made.clock.now += 2

        (left,) = members(await made.directory.look())
    assert left.role is Role.DECODE


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"\xc1",
        b"{}",
        msgspec.msgpack.encode({"type": "HELLO"}),
        msgspec.msgpack.encode({**BEAT, "type": "X"}),
        msgspec.msgpack.encode({**BEAT, "http_address": "http://10.0.0.1:1/path"}),
        msgspec.msgpack.encode({**BEAT, "zmq_address": "10.0.0.1:6301"}),
        msgspec.msgpack.encode({**BEAT, "zmq_address": "host:a b,handshake:1,notify:2"}),
        msgspec.msgpack.encode({**BEAT, "transfer_mode": "PUSH"}),
        msgspec.msgpack.encode(BEAT).replace(b"10.0.0.1:8100", b"\xff" * 13),
    ],
)
async def test_what_is_no_heartbeat_is_refused_with_its_reason(message: bytes) -> None:
    async with site() as made:
        engine = made.engine()
        await engine.send(message)

        seen = await made.seen(lambda seen: seen.refused)

        assert seen.entries == {}
        assert seen.refused["a heartbeat"]
        await engine.send(msgspec.msgpack.encode(BEAT))
        await made.seen(lambda seen: seen.entries)


async def test_a_stranger_is_not_let_in_and_counted() -> None:
    async with site(allow="10.0.0.0/8") as made:
        await made.engine().send(msgspec.msgpack.encode(BEAT))

        seen = await made.seen(lambda seen: seen.refused)

    assert seen.entries == {}
    assert "not allowed" in seen.refused[STRANGERS]


async def test_a_port_that_is_taken_is_a_directory_that_does_not_answer() -> None:
    async with site() as made:
        other = MoriIoDirectory(listen=made.at)

        with pytest.raises(Unseen, match="no heartbeats can be heard"):
            await other.look()


def test_an_entry_says_no_more_than_was_said() -> None:
    member = Member(Role.PREFILL, "h", 1)

    assert "kv_notify" not in json.loads(member.value())


async def test_another_protocols_heartbeats_need_no_more_than_a_reader() -> None:
    async with site() as made:
        made.directory.close()
        made.directory = Lines(made.at, "", made.clock)
        await made.directory.look()
        engine = made.engine()
        await engine.send(b"I am here")
        await engine.send(b"decode 10.0.0.2:8200 10.0.0.2:7100")

        seen = await made.seen(lambda seen: seen.entries)

        (found,) = members(seen)
        instance = found.instance()
        assert (instance.role, instance.url) == (Role.DECODE, "http://10.0.0.2:8200")
        assert (instance.protocol, instance.kv) == ("lines", "10.0.0.2:7100")
        assert "'I' is not a valid Role" in seen.refused["a heartbeat"]
        made.clock.now += FORGET_SECONDS
        assert not (await made.directory.look()).entries
