"""What a publisher says arrives whole and in order, or what was known is forgotten."""

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import msgspec
import pytest
import zmq

from pdgate.gateway.kv_events import subscriber
from pdgate.gateway.kv_events.sources import EventSource
from pdgate.gateway.kv_events.subscriber import END, REPLAY_SECONDS
from tests.gateway.kv_events.hearing import ANY_PORT, PATIENCE_SECONDS, hearing, lossy
from tests.support import zmtp


async def test_what_was_said_before_we_came_is_heard_too() -> None:
    with lossy() as publisher:
        publisher.says("a", "b")
        with hearing(publisher.source) as feed:
            await feed.hears("a", "b")


async def test_a_gap_is_healed() -> None:
    with lossy() as publisher, hearing(publisher.source) as feed:
        await feed.subscribed(publisher)
        before = len(feed.heard)

        publisher.loses("a", "b")
        publisher.says("c")
        await feed.until(lambda: feed.heard[-1:] == ["c"], "c")

        assert feed.heard[before:][-3:] == ["a", "b", "c"]
        assert feed.forgot == 0
        assert feed.feed.counts.gaps >= 1


async def test_a_gap_that_cannot_be_healed_makes_us_forget() -> None:
    with lossy(keeps=2) as publisher, hearing(publisher.source) as feed:
        await feed.subscribed(publisher)

        publisher.loses("a", "b", "c")
        publisher.says("d")

        await feed.hears("c", "d")
        assert feed.feed.counts.resyncs >= 1


async def test_an_engine_that_was_started_anew_is_heard_from_its_beginning() -> None:
    with ExitStack() as first_life, ExitStack() as later:
        first = first_life.enter_context(lossy())
        endpoints = first.endpoint, first.replay_endpoint
        feed = later.enter_context(hearing(first.source))
        await feed.subscribed(first)
        first_life.close()
        second = later.enter_context(lossy(*endpoints))
        second.says("a", "b")

        await feed.hears_in_time("a", "b")
        assert feed.feed.counts.restarts >= 1


async def test_without_replays_a_gap_makes_us_forget() -> None:
    with lossy(replay_endpoint="") as publisher, hearing(publisher.source) as feed:
        await feed.subscribed(publisher)

        publisher.loses("a")
        publisher.says("b", "c")

        await feed.hears("b", "c")


async def test_a_long_history_is_heard_in_several_turns() -> None:
    """In between, calls are served."""
    names = [str(number) for number in range(5000)]
    with lossy(keeps=5000) as publisher:
        publisher.says(*names)
        with hearing(publisher.source) as feed:
            await feed.hears(*names)


@contextmanager
def sockets(*kinds: int) -> Iterator[list["zmq.Socket[bytes]"]]:
    """Bound, of somebody who does not keep to the rules."""
    with ExitStack() as closing:
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        closing.callback(context.term)
        made = []
        for kind in kinds:
            socket = closing.enter_context(context.socket(kind))
            socket.setsockopt(zmq.LINGER, 0)
            socket.bind(ANY_PORT)
            made.append(socket)
        yield made


def endpoint(socket: "zmq.Socket[bytes]") -> str:
    return socket.getsockopt_string(zmq.LAST_ENDPOINT)


async def test_messages_that_are_no_batches_are_counted_and_passed_over() -> None:
    with lossy(replay_endpoint="") as publisher, hearing(publisher.source) as feed:
        await feed.subscribed(publisher)
        for nonsense in ((b"kv",), (b"kv", b"1", b""), (b"kv", b"1" * 8, b"", b"")):
            publisher._send(nonsense)
        publisher.says("a")

        await feed.until(lambda: feed.heard[-1:] == ["a"], "a")
        assert feed.feed.malformed == 3
        assert feed.forgot == 0


async def test_older_engines_repeat_without_a_topic() -> None:
    with sockets(zmq.PUB, zmq.ROUTER) as (silent, router):
        source = EventSource(endpoint(silent), endpoint(router), "kv")
        with hearing(source) as feed:
            assert await asyncio.to_thread(router.poll, int(1000 * PATIENCE_SECONDS))
            peer, _, first = router.recv_multipart()
            batch = msgspec.msgpack.encode([1.0, [{"type": "a"}], 0])
            for frames in ((first, batch), (END, b"")):
                router.send_multipart((peer, b"", *frames))

            await feed.hears("a")


async def test_a_replay_that_is_not_answered_is_given_up() -> None:
    with ExitStack() as closing:
        (silent,) = closing.enter_context(sockets(zmq.ROUTER))
        publisher = closing.enter_context(lossy(replay_endpoint=""))
        source = EventSource(publisher.endpoint, endpoint(silent), "kv")
        feed = closing.enter_context(hearing(source))
        # What is heard meanwhile waits for the replay.
        await feed.once(lambda: feed.feed.sequence.held > 0, publisher)
        assert feed.heard == []

        feed.clock.now += REPLAY_SECONDS + 1
        feed.feed.look()

        await feed.until(lambda: feed.heard[:1] == ["hello"], "hello")


MIB = 1 << 20


@pytest.mark.parametrize("part", [b"x" * MIB, b"x", b""], ids=["long", "short", "empty"])
async def test_a_message_without_end_ends_its_connection_and_fills_nothing(
    part: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ZeroMQ kept all of it: parts with more behind them count for nothing there."""
    monkeypatch.setattr(subscriber, "MOST_WAIT_SECONDS", 0.01)
    took: list[int] = []
    much = zmtp.frame(zmtp.MORE, part) * max(1, MIB // (len(part) + 9))

    async def endless(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(took) == 2:
            writer.write(
                zmtp.message(b"kv", bytes(8), msgspec.msgpack.encode([1.0, [{"type": "a"}], 0]))
            )
            await asyncio.Event().wait()
        took.append(0)
        while took[-1] < 64 * MIB:
            writer.write(much)
            await writer.drain()
            took[-1] += len(much)

    async with zmtp.publisher(endless) as at:
        with hearing(EventSource(at, "", "kv")) as feed:
            await feed.hears("a")
            assert feed.feed.malformed == 2

    # Its own and the kernel's buffers, of both ends.
    assert max(took) < 24 * MIB


async def test_batches_that_are_not_taken_yet_wait_at_the_publisher() -> None:
    """In bytes: 128 of the largest were 256 MiB in each socket of ZeroMQ."""
    ahead: list[int] = []
    batch = msgspec.msgpack.encode([1.0, [{"type": "a" * MIB}], 0])

    async def much(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for number in range(64):
            writer.write(zmtp.message(b"kv", number.to_bytes(8), batch))
            await writer.drain()
            ahead.append(number + 1 - feed.feed.counts.batches)

    async with zmtp.publisher(much) as at:
        with hearing(EventSource(at, "", "kv")) as feed:
            await feed.until(lambda: feed.feed.counts.batches == 64, "all batches")

    assert max(ahead) < 24
    assert feed.feed.counts.gaps == 0
