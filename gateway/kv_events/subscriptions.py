"""A feed for each publisher of each engine that is there, opened and closed as engines come and go.

About once a second: whom do we listen to, whom should we, is any feed too quiet? Where engines
are to be asked where they publish, they are asked when they are first seen and again while they
cannot be reached: an engine that is started anew may publish elsewhere.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from pdgate.gateway.kv_events.events import BatchTooLarge, MalformedBatch, read
from pdgate.gateway.kv_events.sources import (
    ASK,
    PATH,
    BadSource,
    EventSource,
    Sources,
    from_answer,
    from_template,
)
from pdgate.gateway.kv_events.subscriber import Subscriber
from pdgate.gateway.kv_events.translation import EventTranslation, SeenEventCounts
from pdgate.gateway.security.engine_access import EngineAccess
from pdgate.gateway.upstream.one_shot import AskFailed
from pdgate.protocols.instance import Instance
from pdgate.scheduling.endpoints import Endpoints

log = logging.getLogger(__name__)

LOOK_SECONDS: Final = 1.0
ASK_AGAIN_SECONDS: Final = 5.0
ASK_TIMEOUT_SECONDS: Final = 2.0
MAX_ANSWER_BYTES: Final = 1 << 20


Secrets = Callable[[], Sequence[str]]


@dataclass(frozen=True, slots=True)
class Where:
    """Addresses of sources, as `Settings.kv_events` has them.

    Attributes:
        endpoint: A template, or ASK.
        replay_endpoint: A template, or empty.
        secrets: Of the fleet, as they are now. Raises ValueError.
    """

    endpoint: str
    replay_endpoint: str = ""
    topic: str = ""
    secrets: Secrets = tuple


@dataclass(slots=True, eq=False)
class HeardPublisher:
    """What one publisher has said.

    Attributes:
        lag_seconds: From its last batch's writing to our reading it, by the two clocks.
    """

    feed: Subscriber
    seen: SeenEventCounts = field(default_factory=SeenEventCounts)
    lag_seconds: float = 0.0


@dataclass(slots=True, eq=False)
class Listened:
    """One engine, and what we listen to there.

    Attributes:
        doubted: Whether it has what it said is not known until it is certain that it is the one that is heard.
        asked_at: When it was asked last where it publishes.
        trouble: Why nothing is heard of it; empty if something is.
    """

    instance: Instance
    sources: Sources = field(default_factory=dict)
    heard: dict[int, HeardPublisher] = field(default_factory=dict)
    doubted: bool = False
    asked_at: float | None = None
    trouble: str = ""


class Subscriptions:
    """
    Attributes:
        engines: Instance id -> what we listen to there.
    """

    def __init__(
        self,
        where: Where,
        endpoints: Endpoints,
        translation: EventTranslation,
        access: EngineAccess,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.engines: dict[str, Listened] = {}
        self._where = where
        self._endpoints = endpoints
        self._translation = translation
        self._access = access
        self._clock = clock

    async def run(self) -> None:
        try:
            while True:
                async with asyncio.TaskGroup() as asking:
                    asking.create_task(asyncio.sleep(LOOK_SECONDS))
                    for engine in self.look():
                        asking.create_task(self._ask(engine))
        finally:
            for engine in self.engines.values():
                _close(engine)
            self.engines.clear()

    def forgotten(self, instance_id: str | None) -> None:
        """The index believes nothing of it any more, or of any: its process may be gone, or nobody asked for a while."""
        for engine in list(self.engines.values()):
            one = engine.instance.id
            if instance_id is not None and one != instance_id:
                continue
            endpoint = self._endpoints.get(one)
            if endpoint is not None and endpoint.asleep:
                # Its cache is gone by its own word, of which vLLM publishes nothing before its first step awake.
                for rank in engine.heard:
                    self._translation.forget(one, rank)
            else:
                engine.doubted = True
                self._translation.doubt(one)

    def look(self) -> list[Listened]:
        """Listens to those that are there, and to no others. Returns which to ask, and where."""
        there = {c.instance.id: c.instance for c in self._endpoints}
        up = {c.instance.id for c in self._endpoints if c.up}
        for instance_id, engine in list(self.engines.items()):
            now = there.get(instance_id)
            if now is None or _place(now) != _place(engine.instance):
                _close(engine)
                del self.engines[instance_id]
                self._translation.drop(instance_id)
        unknown = []
        for instance_id, instance in there.items():
            known = self.engines.get(instance_id)
            if known is None:
                known = self.engines[instance_id] = Listened(instance)
                if self._where.endpoint != ASK:
                    self._use_template(known)
            self._open(known)
            for heard in known.heard.values():
                heard.feed.look()
            if known.doubted and all(one.feed.certain for one in known.heard.values()):
                known.doubted = False
                self._translation.trust(instance_id)
            if instance_id in up and self._must_ask(known):
                unknown.append(known)
        return unknown

    def _use_template(self, engine: Listened) -> None:
        where = self._where
        try:
            engine.sources = from_template(
                where.endpoint, where.replay_endpoint, where.topic, engine.instance
            )
        except BadSource as error:
            self._complain(engine, str(error))

    def _must_ask(self, engine: Listened) -> bool:
        if self._where.endpoint != ASK:
            return False
        if engine.heard and all(heard.feed.connected for heard in engine.heard.values()):
            return False
        now, asked_at = self._clock(), engine.asked_at
        return asked_at is None or now - asked_at >= ASK_AGAIN_SECONDS

    async def _ask(self, engine: Listened) -> None:
        engine.asked_at = self._clock()
        instance = engine.instance
        try:
            async with asyncio.timeout(ASK_TIMEOUT_SECONDS):
                with self._access.visit(instance.url) as there:
                    answer = await there.get(PATH, most_bytes=MAX_ANSWER_BYTES)
            if answer.status != 200:
                raise BadSource(f"GET {PATH} answered {answer.status}")
            sources = from_answer(answer.body, instance, self._where.secrets())
        except TimeoutError:
            self._complain(engine, f"no {PATH} within {ASK_TIMEOUT_SECONDS:g} s")
        except (AskFailed, ValueError) as error:
            self._complain(engine, str(error))
        else:
            self._complain(engine, "")
            engine.sources = sources

    def _open(self, engine: Listened) -> None:
        for rank, heard in list(engine.heard.items()):
            if engine.sources.get(rank) != heard.feed.source:
                heard.feed.close()
                del engine.heard[rank]
                self._translation.forget(engine.instance.id, rank)
        for rank, source in engine.sources.items():
            if rank not in engine.heard:
                engine.heard[rank] = self._listen(engine.instance.id, rank, source)

    def _listen(self, instance_id: str, rank: int, source: EventSource) -> HeardPublisher:
        forget = partial(self._translation.forget, instance_id, rank)
        feed = Subscriber(source, _nothing, forget, self._clock)
        heard = HeardPublisher(feed)
        feed.taken = partial(self._taken, instance_id, rank, heard)
        return heard

    def _taken(self, instance_id: str, rank: int, heard: HeardPublisher, payload: bytes) -> None:
        try:
            batch = read(payload)
        except MalformedBatch as error:
            heard.seen.malformed += 1
            if isinstance(error, BatchTooLarge):
                self._translation.forget(instance_id, rank)
            return
        if not heard.feed.sequence.replaying:
            heard.lag_seconds = time.time() - batch.at
        self._translation.take(instance_id, rank, batch, heard.seen)

    def _complain(self, engine: Listened, why: str) -> None:
        """Once per change."""
        if engine.trouble != why:
            engine.trouble = why
            log.info("%s: %s", engine.instance.id, why or "its KV events can be heard")


def _place(instance: Instance) -> tuple[str, int | None, int]:
    return instance.url, instance.dp_rank, instance.dp_size


def _close(engine: Listened) -> None:
    for heard in engine.heard.values():
        heard.feed.close()


def _nothing(payload: bytes) -> None: ...
