"""A feed in the process of the test, and publishers that lose what they are told to lose."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

import msgspec

from pdgate.engine.kv_events.publisher import Publisher
from pdgate.gateway.kv_events.sources import EventSource
from pdgate.gateway.kv_events.subscriber import Subscriber
from pdgate.transfer.runtime.fleet import Identity
from tests.support import waiting
from tests.support.clock import Clock

PATIENCE_SECONDS = waiting.PATIENCE_SECONDS
ANY_PORT = "tcp://127.0.0.1:0"


class Lossy(Publisher):
    """Nobody hears what it publishes while it `mumbles`; it can repeat it, though."""

    mumbles = False

    def _send(self, frames: Sequence[bytes]) -> None:
        if not self.mumbles:
            super()._send(frames)

    def says(self, *names: str) -> None:
        """A batch for each, of one event that only a test understands."""
        for name in names:
            self.publish([{"type": name}])

    def loses(self, *names: str) -> None:
        self.mumbles = True
        self.says(*names)
        self.mumbles = False

    @property
    def source(self) -> EventSource:
        return EventSource(self.endpoint, self.replay_endpoint, self.topic)


@contextmanager
def lossy(
    endpoint: str = ANY_PORT,
    replay_endpoint: str = ANY_PORT,
    keeps: int = 100,
    identity: Identity | None = None,
) -> Iterator[Lossy]:
    publisher = Lossy(endpoint, replay_endpoint, "kv", keeps=keeps, identity=identity)
    try:
        yield publisher
    finally:
        publisher.close()


class Hearing:
    """
    Attributes:
        heard: Names of all that was said, since the last time that all was forgotten.
        clock: The feed's.
    """

    def __init__(self, source: EventSource) -> None:
        self.heard: list[str] = []
        self.forgot = 0
        self.clock = Clock()
        self._news = asyncio.Event()
        self.feed = Subscriber(source, self._taken, self._forget, self.clock)

    def _taken(self, payload: bytes) -> None:
        _, events, _ = msgspec.msgpack.decode(payload)
        self.heard += [event["type"] for event in events]
        self._news.set()

    def _forget(self) -> None:
        self.heard.clear()
        self.forgot += 1
        self._news.set()

    async def hears(self, *names: str) -> None:
        """Until exactly this has been heard."""
        await self.until(lambda: self.heard == list(names), f"{names}")

    async def hears_in_time(self, *names: str) -> None:
        """As `hears`, while the feed's clock goes on, 20 times as fast, and it is looked after each second:
        a question that went to a publisher just as it ended is asked again."""
        hears = asyncio.create_task(self.hears(*names))
        while not hears.done():
            self.clock.now += 1
            self.feed.look()
            await asyncio.wait((hears,), timeout=0.05)
        hears.result()

    async def until(self, question: Callable[[], bool], what: str) -> None:
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                while not question():
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            raise AssertionError(f"waited for {what}, heard {self.heard}") from None

    async def subscribed(self, publisher: Lossy) -> None:
        """What is published from now on arrives."""
        # First what comes by replay, so that the next thing heard is not.
        publisher.says("hello")
        await self.once(lambda: not self.feed.sequence.replaying, publisher)
        before = self.feed.counts.batches
        await self.once(lambda: self.feed.counts.batches > before, publisher)

    async def once(self, question: Callable[[], bool], publisher: Lossy) -> None:
        """Nobody tells when a subscription has arrived, so it is tried out."""
        while not question():
            publisher.says("hello")
            self._news.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._news.wait(), 0.01)


@contextmanager
def hearing(source: EventSource) -> Iterator[Hearing]:
    made = Hearing(source)
    try:
        yield made
    finally:
        made.feed.close()
