"""What a publisher says arrives whole and in order, or what was known is forgotten."""

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import msgspec
import zmq

from pdgate.gateway.kv_events.sources import EventSource
from pdgate.gateway.kv_events.subscriber import END, REPLAY_SECONDS
from tests.gateway.kv_events.hearing import ANY_PORT, PATIENCE_SECONDS, hearing, lossy


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
