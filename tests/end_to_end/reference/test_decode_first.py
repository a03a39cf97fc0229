"""decode-first on real processes: two prefill and two decode engines around a real Redis.

Prefill rests for a while after each prompt, and a prompt that comes meanwhile waits at it: so
things can happen. The engines that they happen to are the test's own, and known to the queue
only.
"""

import signal
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass

import pytest

from pdgate.cluster.queue import settings
from pdgate.cluster.queue.contract import Depth
from pdgate.cluster.queue.opening import open_queue
from pdgate.cluster.queue.redis_scripts import GROUP
from pdgate.protocols.dialects import decode_first
from tests.end_to_end.reference.fleet import Engine, Fleet, Gateway, client
from tests.end_to_end.reference.test_same_tokens import (
    BLOCK_TOKENS,
    PROMPTS,
    TOKENS,
    Counts,
    counts,
    said,
)
from tests.support.redis import RedisServer, redis_server

PROTOCOL = "decode-first"
CALLS = 8
MODEL = "pdgate-tiny"
MANY_BLOCKS = "it was the best of times, it was the worst of times; "


@dataclass(frozen=True)
class Site:
    fleet: Fleet
    redis: RedisServer
    prefill: list[Engine]
    decode: list[Engine]
    gateway: Gateway

    def depth(self) -> Depth:
        with closing(open_queue(settings.read(self.redis.url), MODEL)) as queue:
            return queue.depth()

    def held(self) -> dict[str, int]:
        """Items by worker."""
        with self.redis.client() as client:
            workers = client.xinfo_consumers(f"{{pdgate:prefill:{MODEL}}}:items", GROUP)
        # One that never had any is not among them.
        return {worker["name"]: worker["pending"] for worker in workers}

    def newcomer(self) -> tuple[Engine, str]:
        """A prefill engine that keeps its second prompt for seconds, and its worker's name."""
        engine = started(self.fleet, self.redis, "prefill", prefill_ms=2000)
        return engine, engine.process.wait_for_line(r"prefill worker (\w+) takes")[1]

    def wait_until(self, question: Callable[[], bool], what: str) -> None:
        self.gateway.process.wait_until(lambda: question() or None, what, seconds=60)

    def loading(self) -> float:
        return sum(one.metric("pdgate_engine_requests_loading") for one in self.decode)

    def counts(self) -> Counts:
        columns = zip(*map(counts, self.decode), strict=True)
        return Counts(*(sum(column) for column in columns))

    def prefilled(self) -> Counts:
        columns = zip(*map(counts, self.prefill), strict=True)
        return Counts(*(sum(column) for column in columns))

    def failed_loads(self) -> float:
        return sum(one.metric("pdgate_engine_kv_transfers_failed_total") for one in self.decode)

    def is_through(self) -> None:
        """Nothing is left on the queue, and nothing was given up."""
        self.wait_until(lambda: self.depth().waiting + self.depth().taken == 0, "an empty queue")
        assert self.depth().buried == 0


def started(fleet: Fleet, redis: RedisServer, role: str, prefill_ms: int = 500) -> Engine:
    queue = ("--queue", f"{redis.url}?redeliver_seconds=2")
    slow = ("--min-prefill-ms", str(prefill_ms)) if role == "prefill" else ()
    return fleet.engine(role, PROTOCOL, "tcp", *queue, *slow)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with redis_server(tmp_path_factory.mktemp("redis")) as redis, ExitStack() as running:
        fleet = Fleet(running, sys.executable)
        prefill = [started(fleet, redis, "prefill") for _ in range(2)]
        decode = [started(fleet, redis, "decode") for _ in range(2)]
        flags = [word for one in prefill for word in ("--prefill", one.url)]
        flags += [word for one in decode for word in ("--decode", one.url)]
        with fleet.serve("--pdd-protocol", PROTOCOL, *flags) as gateway:
            yield Site(fleet, redis, prefill, decode, gateway)


def answer(url: str, salt: str, number: int) -> str:
    """No two share a block, so each needs a prefill."""
    text, _, _ = said(url, f"{salt} {number}. {MANY_BLOCKS * 3}", False, True)
    return text


@contextmanager
def asking(site: Site, salt: str, calls: int = CALLS) -> Iterator[list[Future[str]]]:
    """Concurrent calls. The block fails if one is not answered as the single engine does."""
    single = site.fleet.single()
    expected = [answer(single.url, salt, number) for number in range(calls)]
    with ThreadPoolExecutor(calls) as pool:
        asked = [pool.submit(answer, site.gateway.url, salt, number) for number in range(calls)]
        yield asked
        assert [one.result() for one in asked] == expected


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("chat", [False, True], ids=["completions", "chat"])
def test_the_answer_is_the_single_engines(site: Site, chat: bool, stream: bool) -> None:
    before = site.counts()

    for text in PROMPTS.values():
        single = said(site.fleet.single().url, text, chat, stream)
        assert said(site.gateway.url, text, chat, stream) == single

    found = site.counts().since(before)
    assert found.moved > 0
    # At most the last token of each prompt.
    assert found.computed <= found.answers


def test_of_a_second_turn_only_what_is_new_is_computed(site: Site) -> None:
    """Prefill reads the rest from the decode engine that had the first turn."""
    first = f"Once upon a time {MANY_BLOCKS}"
    second = f"{first} {MANY_BLOCKS}"
    expected = said(site.fleet.single().url, second, False, False)
    decode = client(site.decode[0].url).completions
    decode.create(model=MODEL, prompt=first, max_tokens=1)
    before = site.prefilled()

    answer = decode.create(
        model=MODEL,
        prompt=second,
        max_tokens=TOKENS,
        temperature=0,
        extra_body={"kv_transfer_params": dict(decode_first.QUEUED)},
    )

    (choice,) = answer.choices
    assert choice.text == expected[0]
    had = (len(first) + 1) // BLOCK_TOKENS * BLOCK_TOKENS
    found = site.prefilled().since(before)
    assert (found.moved, found.computed) == (had, len(second) - had)


@pytest.mark.parametrize("empty", [False, True], ids=["with its data", "empty"])
def test_redis_may_be_away_and_nothing_is_lost(site: Site, empty: bool) -> None:
    """It goes while prompts are waiting and being computed, and more calls come meanwhile."""
    with asking(site, f"early {empty}", CALLS // 2):
        site.wait_until(lambda: site.depth().taken > 0, "a prompt that is being computed")
        site.redis.stop()
        with asking(site, f"late {empty}"):
            site.wait_until(lambda: site.loading() >= CALLS, "calls that wait")
            if empty:
                site.redis.forget()
            site.redis.start()
    site.is_through()


def test_every_prompt_is_served_once_though_a_prefill_engine_is_killed(site: Site) -> None:
    victim, worker = site.newcomer()
    before = site.counts()
    with asking(site, "killed"):
        site.wait_until(lambda: site.held().get(worker, 0) > 0, "a prompt at the victim")

        victim.process.signal(signal.SIGKILL)

    site.is_through()
    found = site.counts().since(before)
    # All but the last token of each prompt came over, and nothing was computed in its place.
    assert (found.answers, found.computed) == (CALLS, CALLS)


def test_a_prefill_engine_that_is_told_to_go_finishes_what_it_has(site: Site) -> None:
    leaving, worker = site.newcomer()
    before = site.failed_loads()
    with asking(site, "leaving"):
        site.wait_until(lambda: site.held().get(worker, 0) > 0, "a prompt at who is to go")

        leaving.process.signal(signal.SIGTERM)

        assert leaving.process.wait_for_end() == 0
    # Nothing went back to the queue: a try that is wasted on each who leaves adds up.
    assert site.failed_loads() == before
