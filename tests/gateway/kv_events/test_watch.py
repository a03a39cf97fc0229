"""A watch over engines: it finds them, hears them, and asks them for tokens."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from prometheus_client import generate_latest

from pdgate.cluster.jobs import Jobs
from pdgate.gateway.kv_events import subscriptions, tokenizing
from pdgate.gateway.kv_events.events import MOST_BATCH_BLOCKS
from pdgate.gateway.kv_events.subscriptions import Where
from pdgate.gateway.kv_events.watch import EventWatch
from pdgate.gateway.metrics.page import registry_of
from pdgate.gateway.upstream.one_shot import OneShotAnswer
from pdgate.protocols.call import CHAT, COMPLETIONS, Call, Raw, encode
from pdgate.protocols.instance import Instance, Role
from pdgate.scheduling.endpoints import Endpoints
from pdgate.scheduling.prefix import PrefixIndex
from tests.gateway.kv_events.engine import KvCache
from tests.gateway.kv_events.hearing import Lossy, lossy
from tests.support.visited import Question, Visited
from tests.support.waiting import until

TOKENS = list(range(10_000, 10_960))
ASK = Where("ask")


class Engines(Visited):
    """Answers as the engines' HTTP face.

    Attributes:
        publishers: Host -> its publishers, by rank.
        tokens: What every prompt becomes; None for an engine that does not tell.
        asked: Bodies of /tokenize.
        hangs: Answers nothing.
    """

    def __init__(self, **publishers: list[Lossy]) -> None:
        super().__init__(self.told)
        # The base is frozen; this is a fake with a memory.
        self.__dict__.update(publishers=publishers, tokens=TOKENS, asked=[], hangs=False)

    publishers: dict[str, list[Lossy]]
    tokens: list[int] | None
    asked: list[Any]
    hangs: bool

    async def told(self, question: Question) -> OneShotAnswer:
        if self.hangs:
            await asyncio.Future()
        if question.path == "/tokenize":
            self.asked.append(json.loads(question.body))
            if self.tokens is None:
                return OneShotAnswer(404, b"")
            return OneShotAnswer(200, encode({"count": 1, "tokens": self.tokens}))
        ranks = self.publishers.get(question.host)
        if ranks is None:
            return OneShotAnswer(404, b"")
        return OneShotAnswer(200, encode({str(n): _config(one) for n, one in enumerate(ranks)}))


def _config(publisher: Lossy) -> dict[str, str]:
    return {
        "endpoint": publisher.endpoint,
        "replay_endpoint": publisher.replay_endpoint,
        "topic": publisher.topic,
    }


def instance(name: str, **more: Any) -> Instance:
    return Instance(name, f"http://{name}:8000", Role.PLAIN, "plain", **more)


def known(*records: Instance) -> Endpoints:
    endpoints = Endpoints(records)
    for record in records:
        endpoints.mark_up(record.id, ["m"])
    return endpoints


@asynccontextmanager
async def watching(
    endpoints: Endpoints, engines: Engines, where: Where = ASK
) -> AsyncIterator[EventWatch]:
    watch = EventWatch(PrefixIndex, where, endpoints, engines)
    async with Jobs() as jobs:
        jobs.add_all(watch.jobs)
        jobs.start()
        yield watch


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscriptions, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(subscriptions, "ASK_AGAIN_SECONDS", 0.01)


def call(path: str = COMPLETIONS, **body: Any) -> Call:
    fields = {name: Raw(encode(field)) for name, field in body.items()}
    size = sum(map(len, fields.values()))
    return Call("c", "c", path, fields, model="m", prompt_tokens=size // 4)


def stored(watch: EventWatch) -> float:
    return sum(
        heard.seen.stored
        for engine in watch.subscriptions.engines.values()
        for heard in engine.heard.values()
    )


async def test_a_call_of_token_ids_finds_who_has_them() -> None:
    with lossy() as a, lossy() as b:
        a.publish([KvCache().stored(TOKENS)])
        b.publish([KvCache().stored(TOKENS[:320])])
        async with watching(known(instance("a"), instance("b")), Engines(a=[a], b=[b])) as watch:
            await until(lambda: stored(watch) == 80, "both engines' blocks")

            matched = watch.index.matched(call(prompt=TOKENS))

    assert matched["a"] > 2 * matched["b"] > 0


async def test_two_ranks_are_heard_as_one_engine() -> None:
    with lossy() as first, lossy() as second:
        first.publish([KvCache().stored([1] * 64)])
        second.publish([KvCache(seed="other").stored(TOKENS)])
        async with watching(known(instance("a", dp_size=2)), Engines(a=[first, second])) as watch:
            await until(lambda: stored(watch) == 64, "both ranks' blocks")

            assert watch.index.matched(call(prompt=TOKENS))["a"] > 0
            assert set(watch.subscriptions.engines["a"].heard) == {0, 1}


async def test_a_template_needs_no_question() -> None:
    with lossy() as publisher:
        publisher.publish([KvCache().stored(TOKENS)])
        where = Where(publisher.endpoint, publisher.replay_endpoint, publisher.topic)
        async with watching(known(instance("a")), Engines(), where) as watch:
            await until(lambda: stored(watch) == 60, "its blocks")


async def test_a_chat_is_known_once_an_engine_has_told_its_tokens() -> None:
    chat = call(CHAT, messages=[{"role": "user", "content": "x" * 4000}], temperature=0)
    with lossy() as a:
        a.publish([KvCache().stored(TOKENS)])
        engines = Engines(a=[a])
        async with watching(known(instance("a")), engines) as watch:
            await until(lambda: stored(watch) == 60, "its blocks")
            assert watch.index.matched(chat) == {}
            assert watch.tokenizing is not None
            asked = watch.tokenizing.asked
            await until(lambda: asked.answered, "its tokens")

            again = call(CHAT, messages=[{"role": "user", "content": "x" * 4000}], temperature=1)
            assert watch.index.matched(again)["a"] > 0

    assert engines.asked == [{"messages": [{"role": "user", "content": "x" * 4000}]}]


async def test_a_chat_is_known_by_the_ids_that_prefill_answered() -> None:
    """Where engines are not asked for tokens, too; and what they answer instead is for nothing."""
    chat = call(CHAT, messages=[{"role": "user", "content": "x" * 4000}], temperature=0)
    with lossy() as a:
        a.publish([KvCache().stored(TOKENS)])
        engines = Engines(a=[a])
        watch = EventWatch(PrefixIndex, ASK, known(instance("a")), engines, tokenize=False)
        async with Jobs() as jobs:
            jobs.add_all(watch.jobs)
            jobs.start()
            await until(lambda: stored(watch) == 60, "its blocks")
            assert watch.index.matched(chat) == {}
            for nonsense in ({}, {"prompt_token_ids": None}, {"prompt_token_ids": ["a"]}):
                watch.read(chat, {name: Raw(encode(ids)) for name, ids in nonsense.items()})
            assert watch.index.matched(chat) == {}

            watch.read(chat, {"prompt_token_ids": Raw(encode(TOKENS))})

            assert watch.index.matched(chat)["a"] > 0
    assert engines.asked == []


async def test_engines_that_tell_no_tokens_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenizing, "MOST_WAITING", 1)
    engines = Engines()
    engines.__dict__["tokens"] = None
    async with watching(known(instance("a")), engines) as watch:
        for text in ("x" * 2000, "y" * 2000, "z" * 2000):
            watch.index.matched(call(prompt=text))
        assert watch.tokenizing is not None
        asked = watch.tokenizing.asked
        await until(lambda: asked.failed == 1, "the last one")

    assert (asked.answered, asked.given_up) == (0, 2)


async def test_engines_that_hang_are_waited_for_no_longer_than_that(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(subscriptions, "ASK_TIMEOUT_SECONDS", 0.01)
    monkeypatch.setattr(tokenizing, "TIMEOUT_SECONDS", 0.01)
    engines = Engines()
    engines.__dict__["hangs"] = True
    async with watching(known(instance("a")), engines) as watch:
        await until(
            lambda: watch.subscriptions.engines["a"].trouble if watch.subscriptions.engines else "",
            "it",
        )
        watch.index.matched(call(prompt="x" * 2000))
        assert watch.tokenizing is not None
        asked = watch.tokenizing.asked
        await until(lambda: asked.failed == 1, "its tokens")

        assert watch.subscriptions.engines["a"].trouble == "no /kv_event_sources within 0.01 s"


async def test_an_engine_that_leaves_has_nothing() -> None:
    with lossy() as a:
        a.publish([KvCache().stored(TOKENS)])
        endpoints = known(instance("a"))
        async with watching(endpoints, Engines(a=[a])) as watch:
            await until(lambda: stored(watch) == 60, "its blocks")
            assert watch.index.matched(call(prompt=TOKENS))

            endpoints.remove("a")
            await until(lambda: not watch.subscriptions.engines, "its end")

            assert watch.index.matched(call(prompt=TOKENS)) == {}


@pytest.mark.parametrize("why", ["refused", "no policy asked for a while"])
async def test_an_engine_that_was_forgotten_and_is_still_heard_has_what_it_had(why: str) -> None:
    """A connection was refused, as of a host that had no time for one: neither its process nor its cache is gone."""
    with lossy() as a:
        a.publish([KvCache().stored(TOKENS)])
        endpoints = known(instance("a"))
        async with watching(endpoints, Engines(a=[a])) as watch:
            endpoints.on_lost = watch.index.forget
            await until(lambda: stored(watch) == 60, "its blocks")
            before = watch.index.matched(call(prompt=TOKENS))
            assert before["a"] > 0

            if why == "refused":
                endpoints.mark_down("a", why)
                endpoints.mark_up("a", ["m"])
            else:
                watch.index.clear()

            await until(lambda: watch.index.matched(call(prompt=TOKENS)) == before, "its blocks")


async def test_an_engine_that_was_down_and_is_not_heard_is_believed_to_have_nothing() -> None:
    """Its process may have gone, and another one that has nothing yet may be up before it is heard."""
    endpoints, engines = known(instance("a"), instance("b")), Engines()
    with lossy() as b:
        async with watching(endpoints, engines) as watch:
            endpoints.on_lost = watch.index.forget
            with lossy() as a:
                engines.publishers.update(a=[a], b=[b])
                for one in (a, b):
                    one.publish([KvCache().stored(TOKENS)])
                await until(lambda: stored(watch) == 120, "their blocks")
                assert watch.index.matched(call(prompt=TOKENS)).keys() == {"a", "b"}
            feed = watch.subscriptions.engines["a"].heard[0].feed
            await until(lambda: not feed.connected, "the end of a")

            for name in ("a", "b"):
                endpoints.mark_down(name, "refused")
                endpoints.mark_up(name, ["m"])
            await until(lambda: watch.index.matched(call(prompt=TOKENS)), "what b has")

            assert watch.index.matched(call(prompt=TOKENS)).keys() == {"b"}


async def test_an_engine_that_sleeps_has_nothing_whatever_it_said_before() -> None:
    """vLLM publishes that its cache is empty with its first step awake."""
    cache = KvCache()
    with lossy() as a:
        a.publish([cache.stored(TOKENS)])
        endpoints = known(instance("a"))
        async with watching(endpoints, Engines(a=[a])) as watch:
            endpoints.on_lost = watch.index.forget
            await until(lambda: stored(watch) == 60, "its blocks")
            assert watch.index.matched(call(prompt=TOKENS))

            endpoints.mark_asleep("a")
            assert watch.index.matched(call(prompt=TOKENS)) == {}
            endpoints.mark_up("a", ["m"])
            other = [1] * 960
            a.publish([KvCache().stored(other)])
            await until(lambda: watch.index.matched(call(prompt=other)), "what it has read since")

            assert watch.index.matched(call(prompt=TOKENS)) == {}


async def test_an_engine_that_publishes_elsewhere_after_a_restart_is_found_again() -> None:
    engines = Engines()
    async with watching(known(instance("a")), engines) as watch:
        with lossy() as first:
            first.publish([KvCache().stored(TOKENS)])
            engines.publishers["a"] = [first]
            await until(lambda: stored(watch) == 60, "its blocks")
            heard = watch.subscriptions.engines["a"].heard
            await until(lambda: heard[0].feed.connected, "the connection")
        with lossy() as second:
            second.publish([KvCache().stored(TOKENS[:32])])
            engines.publishers["a"] = [second]
            await until(lambda: stored(watch) == 2, "its new blocks")
            matched = watch.index.matched(call(prompt=TOKENS))

    assert matched == {}, "two token blocks fill no block of bytes"


async def test_a_batch_that_is_too_large_to_read_leaves_nothing_known_of_the_engine() -> None:
    """It may have said that any of the blocks is gone."""
    with lossy() as a:
        a.publish([KvCache().stored(TOKENS)])
        async with watching(known(instance("a")), Engines(a=[a])) as watch:
            await until(lambda: stored(watch) == 60, "its blocks")
            cached = watch.translation.cached("a", 0).pages
            assert len(cached) == 60

            heard = watch.subscriptions.engines["a"].heard[0]
            await until(lambda: heard.feed.connected, "the connection")
            a.publish(
                [{"type": "BlockRemoved", "block_hashes": list(range(MOST_BATCH_BLOCKS + 1))}]
            )

            await until(lambda: heard.seen.malformed == 1, "the batch")
            assert len(cached) == 0


async def test_what_is_heard_is_shown() -> None:
    with lossy() as a:
        a.publish([KvCache().stored(TOKENS), {"type": "BlockBaked"}])
        async with watching(known(instance("a"), instance("mute")), Engines(a=[a])) as watch:
            await until(lambda: stored(watch) == 60, "its blocks")
            await until(lambda: watch.subscriptions.engines["mute"].trouble, "the other's trouble")
            page = generate_latest(registry_of(watch.collect)).decode()

    assert 'pdgate_kv_event_blocks_total{event="stored",instance="a",rank="0"} 60.0' in page
    assert 'pdgate_kv_event_troubles_total{instance="a",kind="malformed",rank="0"} 1.0' in page
    assert 'pdgate_kv_event_cached_blocks{instance="a",rank="0"} 60.0' in page
    assert 'pdgate_kv_event_connected{instance="mute"} 0.0' in page
