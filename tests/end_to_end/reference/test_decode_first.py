"""decode-first on real processes: two prefill and two decode engines around a real Redis."""

import signal
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from pdgate.cluster.queue import settings
from pdgate.cluster.queue.contract import Depth
from pdgate.cluster.queue.opening import open_queue
from tests.end_to_end.reference.fleet import Engine, Fleet, Gateway
from tests.end_to_end.reference.test_same_tokens import PROMPTS, Counts, counts, said
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

    def wait_until(self, question: Callable[[], bool], what: str) -> None:
        self.gateway.process.wait_until(lambda: question() or None, what, seconds=60)

    def loading(self) -> float:
        return sum(one.metric("pdgate_engine_requests_loading") for one in self.decode)


@contextmanager
def site(folder: Path, *prefill_flags: str, transfer: str = "tcp") -> Iterator[Site]:
    with ExitStack() as running, redis_server(folder) as redis:
        fleet = Fleet(running, sys.executable)
        flags = ("--queue", f"{redis.url}?redeliver_seconds=2")
        prefill = [
            fleet.engine("prefill", PROTOCOL, transfer, *flags, *prefill_flags) for _ in range(2)
        ]
        decode = [fleet.engine("decode", PROTOCOL, transfer, *flags) for _ in range(2)]
        words = ["--pdd-protocol", PROTOCOL]
        for role, engines in (("--prefill", prefill), ("--decode", decode)):
            for one in engines:
                words += [role, one.url]
        with fleet.serve(*words) as gateway:
            yield Site(fleet, redis, prefill, decode, gateway)


@pytest.fixture(scope="module")
def quiet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Nothing happens to it."""
    with site(tmp_path_factory.mktemp("site"), transfer="shm") as found:
        yield found


@pytest.fixture
def slow(tmp_path: Path) -> Iterator[Site]:
    """Its prefill engines take half a second for a prompt, so that things can happen to them."""
    with site(tmp_path, "--min-prefill-ms", "500") as found:
        yield found


def prompt(number: int) -> str:
    """No two share a block, so each needs a prefill."""
    return f"{number}. {MANY_BLOCKS * 3}"


@contextmanager
def asking(site: Site, calls: int) -> Iterator[list[Future[str]]]:
    """Concurrent calls; the block fails if one of them does."""
    with ThreadPoolExecutor(calls) as pool:
        asked = [
            pool.submit(lambda n: said(site.gateway.url, prompt(n), False, True)[0], number)
            for number in range(calls)
        ]
        yield asked
        for one in asked:
            one.result()


def expected(site: Site, calls: int) -> list[str]:
    single = site.fleet.single()
    return [said(single.url, prompt(number), False, True)[0] for number in range(calls)]


def total(engines: list[Engine]) -> Counts:
    return Counts(*(sum(column) for column in zip(*map(counts, engines), strict=True)))


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("chat", [False, True], ids=["completions", "chat"])
def test_the_answer_is_the_single_engines(quiet: Site, chat: bool, stream: bool) -> None:
    before = total(quiet.decode)

    for text in PROMPTS.values():
        single = said(quiet.fleet.single().url, text, chat, stream)
        assert said(quiet.gateway.url, text, chat, stream) == single

    found = total(quiet.decode).since(before)
    assert found.moved > 0
    # At most the last token of each prompt.
    assert found.computed <= found.answers


def test_both_prefill_engines_take_from_the_queue(slow: Site) -> None:
    answers = expected(slow, CALLS)

    with asking(slow, CALLS) as asked:
        assert [one.result() for one in asked] == answers

    shares = [one.metric("pdgate_engine_steps_total") for one in slow.prefill]
    assert min(shares) > 0
    assert total(slow.decode).answers == CALLS


@pytest.mark.parametrize("empty", [False, True], ids=["with its data", "empty"])
def test_redis_may_be_away_and_nothing_is_lost(slow: Site, empty: bool) -> None:
    """It goes while prompts are waiting and being computed, and more calls come meanwhile."""
    answers = expected(slow, CALLS)
    with asking(slow, CALLS // 2) as early:
        slow.wait_until(lambda: slow.depth().taken > 0, "a prompt that is being computed")
        slow.redis.stop()
        before = slow.loading()
        with asking(slow, CALLS) as late:
            slow.wait_until(lambda: slow.loading() >= max(before, CALLS), "calls that wait")
            if empty:
                slow.redis.forget()
            slow.redis.start()
            assert [one.result() for one in late] == answers
        assert [one.result() for one in early] == answers[: CALLS // 2]

    slow.wait_until(lambda: slow.depth().waiting + slow.depth().taken == 0, "an empty queue")
    assert slow.depth().buried == 0


def test_every_prompt_is_served_once_though_a_prefill_engine_is_killed(slow: Site) -> None:
    answers = expected(slow, CALLS)
    victim = slow.prefill[0]
    with asking(slow, CALLS) as asked:
        slow.wait_until(lambda: slow.depth().taken == 2, "a prompt at each of the two")
        victim.process.signal(signal.SIGKILL)

        assert [one.result() for one in asked] == answers

    slow.wait_until(lambda: slow.depth().waiting + slow.depth().taken == 0, "an empty queue")
    assert slow.depth().buried == 0
    assert total(slow.decode).answers == CALLS
    # Each prompt but its last token came over once, and nothing was computed in its place.
    assert total(slow.decode).computed <= CALLS
