"""Two prefill and two decode engines of decode-first around a real Redis and a real etcd.

    static     the gateway that was told of the engines
    dynamic    the one that found them in etcd

Both know the Redis. Prefill rests for a while after each prompt, and a prompt that comes
meanwhile waits at it: so things can happen.
"""

import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pdgate.cluster.queue import settings
from pdgate.cluster.queue.contract import Depth
from pdgate.cluster.queue.opening import open_queue
from pdgate.cluster.queue.redis_scripts import GROUP
from tests.end_to_end.reference.fleet import Engine, Fleet, Gateway
from tests.end_to_end.reference.test_same_tokens import Counts, counts, said
from tests.support.etcd import EtcdServer, etcd_server
from tests.support.redis import RedisServer, redis_server

PROTOCOL = "decode-first"
CALLS = 8
MODEL = "pdgate-tiny"
MANY_BLOCKS = "it was the best of times, it was the worst of times; "


@dataclass(frozen=True)
class Site:
    fleet: Fleet
    redis: RedisServer
    etcd: EtcdServer
    prefill: list[Engine]
    decode: list[Engine]
    gateways: dict[str, Gateway]

    def says(self, gateway: str, of: str, state: str) -> None:
        """Waits until /ready has this state of the directory, the Redis or the queue."""

        def said() -> bool:
            found: Any = self.gateways[gateway].ready().get(of)
            return found is not None and bool(found["state"] == state)

        self.wait_until(said, f"{of} {state} on /ready")

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
        self.gateways["static"].process.wait_until(lambda: question() or None, what, seconds=60)

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


def started(
    fleet: Fleet, redis: RedisServer, role: str, *flags: str, prefill_ms: int = 500
) -> Engine:
    queue = ("--queue", f"{redis.url}?redeliver_seconds=2")
    slow = ("--min-prefill-ms", str(prefill_ms)) if role == "prefill" else ()
    return fleet.engine(role, PROTOCOL, "tcp", *queue, *slow, *flags)


@contextmanager
def running_site(folder: Path) -> Iterator[Site]:
    with (
        redis_server(folder) as redis,
        etcd_server(folder) as etcd,
        ExitStack() as running,
    ):
        fleet = Fleet(running, sys.executable)
        listed = ("--etcd", etcd.endpoints[0])
        prefill = [started(fleet, redis, "prefill", *listed) for _ in range(2)]
        decode = [started(fleet, redis, "decode", *listed) for _ in range(2)]
        flags = [word for one in prefill for word in ("--prefill", one.url)]
        flags += [word for one in decode for word in ("--decode", one.url)]
        often = ("--engine-metrics-interval", "0.2")
        known = ("--pdd-protocol", PROTOCOL, "--redis", redis.url, *often)
        with fleet.serve(*known, *flags) as static, fleet.serve(*known, *listed) as dynamic:
            gateways = {"static": static, "dynamic": dynamic}
            yield Site(fleet, redis, etcd, prefill, decode, gateways)


def answer(url: str, salt: str, number: int) -> str:
    """No two share a block, so each needs a prefill."""
    text, _, _ = said(url, f"{salt} {number}. {MANY_BLOCKS * 3}", False, True)
    return text


@contextmanager
def asking(
    site: Site, salt: str, calls: int = CALLS, gateway: str = "static"
) -> Iterator[list[Future[str]]]:
    """Concurrent calls. The block fails if one is not answered as the single engine does."""
    single, url = site.fleet.single(), site.gateways[gateway].url
    expected = [answer(single.url, salt, number) for number in range(calls)]
    with ThreadPoolExecutor(calls) as pool:
        asked = [pool.submit(answer, url, salt, number) for number in range(calls)]
        yield asked
        assert [one.result() for one in asked] == expected
