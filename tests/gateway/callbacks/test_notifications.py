"""Notifications over ZeroMQ reach the attempt that waits for them, and strangers are not let in."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
import zmq
import zmq.asyncio

from pdgate.cluster.networks import Allowed
from pdgate.gateway.callbacks.notifications import Notifications
from pdgate.gateway.callbacks.words import MessageResult, Words
from pdgate.protocols.dialects.lmcache import notified
from tests.support.waiting import PATIENCE_SECONDS


@asynccontextmanager
async def serving(words: Words, *networks: str) -> AsyncIterator[Notifications]:
    server = Notifications("127.0.0.1", 0, words, Allowed(networks), [notified])
    running = asyncio.create_task(server.run())
    try:
        yield server
    finally:
        running.cancel()
        await asyncio.wait((running,))
        server.close()


@asynccontextmanager
async def pusher(server: Notifications) -> AsyncIterator["zmq.asyncio.Socket"]:
    context = zmq.asyncio.Context()
    socket = context.socket(zmq.PUSH)
    socket.connect(f"tcp://127.0.0.1:{server.port}")
    try:
        yield socket
    finally:
        context.destroy(linger=0)


def notif(req_id: Any) -> bytes:
    return msgspec.msgpack.encode({"type": "ProxyNotif", "req_id": req_id})


async def counted(words: Words, result: MessageResult, least: int) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        # ZeroMQ tells nobody that it has refused.
        while words.counts[result] < least:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_a_notification_reaches_who_waits_for_it() -> None:
    words = Words()
    async with serving(words) as server, pusher(server) as socket:
        with words.expecting("c7-1") as word:
            await socket.send(notif("c7-1"))
            async with asyncio.timeout(PATIENCE_SECONDS):
                assert await word == {}
        await socket.send(notif("c7-1"))
        await counted(words, MessageResult.UNKNOWN, 1)
    assert words.counts[MessageResult.TAKEN] == 1


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"\xc1",
        b"{}",
        msgspec.msgpack.encode({"type": "Other"}),
        notif(7),
        notif("no UTF-8").replace(b"UTF-8", b"\xff" * 5),
    ],
)
async def test_what_is_no_notification_is_counted_and_the_next_is_heard(message: bytes) -> None:
    words = Words()
    async with serving(words) as server, pusher(server) as socket:
        await socket.send(message)
        await counted(words, MessageResult.MALFORMED, 1)
        await socket.send(notif("of-nobody"))
        await counted(words, MessageResult.UNKNOWN, 1)


async def test_a_flood_of_messages_leaves_the_loop_its_turns() -> None:
    """What is there is received at once: the socket never had the loop wait for it."""
    words, turns = Words(), 0
    server = Notifications("127.0.0.1", 0, words, Allowed(), [notified])
    async with pusher(server) as socket:
        for _ in range(200):
            await socket.send(notif("of-nobody"))
        running = asyncio.create_task(server.run())
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                while words.counts[MessageResult.UNKNOWN] < 200:
                    seen = words.counts[MessageResult.UNKNOWN]
                    await asyncio.sleep(0)
                    turns += words.counts[MessageResult.UNKNOWN] > seen
        finally:
            running.cancel()
            await asyncio.wait((running,))
            server.close()
    assert turns >= 200


async def test_a_stranger_is_not_let_in_and_counted() -> None:
    words = Words()
    async with serving(words, "10.0.0.0/8") as server, pusher(server) as socket:
        with words.expecting("c7-1") as word:
            await socket.send(notif("c7-1"))
            await counted(words, MessageResult.STRANGER, 1)
            assert not word.done()
    assert words.counts[MessageResult.TAKEN] == 0


async def test_a_long_message_ends_its_connection_and_no_other() -> None:
    words = Words()
    async with serving(words) as server, pusher(server) as socket:
        with words.expecting("c7-1") as word:
            await socket.send(b"x" * 4096)
            async with pusher(server) as other:
                await other.send(notif("c7-1"))
                async with asyncio.timeout(PATIENCE_SECONDS):
                    await word
        await counted(words, MessageResult.TOO_LARGE, 1)
    assert words.counts[MessageResult.MALFORMED] == 0
