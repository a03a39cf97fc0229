"""Data-parallel ranks of PdgateConnector: each is asked at a KV port of its own, and computes what it was asked for itself.

    one     a single engine, also what all are compared with
    two     two ranks behind a URL; as decode they are written to, layer by layer
    reads   two ranks that read, whatever prefill would do; they may also ask by a queue, whose worker is beside two's rank 1

All are prefill and decode at once, so three engines make every pair; none has a prefix cache, so what decode does not
compute has come from its peer.
"""

import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import count

import pytest

from pdgate.engine.vllm.metrics import PREFIX
from tests.end_to_end.vllm.asking import client, complete, prompt
from tests.end_to_end.vllm.engines import (
    BLOCK,
    START_SECONDS,
    Engine,
    Fleet,
    Transfer,
    pdgate_over,
    ready,
)
from tests.end_to_end.vllm.gateway import UNWATCHED, gateway_over
from tests.end_to_end.vllm.metrics import held_share, metric, settles
from tests.end_to_end.vllm.test_doctor import doctor
from tests.end_to_end.vllm.trio import with_queue
from tests.support.ports import LOOPBACK, free_port
from tests.support.processes import child
from tests.support.redis import RedisServer, redis_server

RANKS = 2
CALLS = 8
LENGTH = 4 * BLOCK + 3
LEASE_SECONDS = 60.0
"""Six processes that spin on two cores take their time."""
BY_TURNS = (*UNWATCHED, "--prefill-policy", "round_robin", "--decode-policy", "round_robin")

KINDS = {"one": (1, "layerwise"), "two": (RANKS, "layerwise"), "reads": (RANKS, "pull")}
"""How many ranks, and the connector's mode."""
WAYS = [
    ("two", "one", "vllm-kvt", "batch"),
    ("two", "one", "vllm-kvt", "staged"),
    ("one", "two", "vllm-kvt", "batch"),
    ("two", "reads", "vllm-kvt", "batch"),
    ("two", "reads", "vllm-kvt", "staged"),
    ("reads", "two", "vllm-kvt", "batch"),
    ("reads", "two", "vllm-nixl", "staged"),
]

NAMES = ["-".join(way).replace("-vllm", "") for way in WAYS]
"""By which the queue of tests does not take them for those of another pair (tests/file_queue.py)."""


@dataclass(frozen=True, slots=True)
class Ranked:
    """
    Attributes:
        kv_port: Of its first rank.
    """

    engine: Engine
    ranks: int
    kv_port: int

    def by_rank(self, name: str) -> list[float]:
        return [metric(self.engine, name, engine=str(rank)) for rank in range(self.ranks)]


@dataclass(frozen=True, slots=True)
class RankedPair:
    prefill: Ranked
    decode: Ranked
    transfer: Transfer

    @property
    def serve(self) -> Sequence[str]:
        kv = f",kv={LOOPBACK}:{self.prefill.kv_port}"
        return [
            word
            for role, side, more in (("prefill", self.prefill, kv), ("decode", self.decode, ""))
            for word in ("--instance", f"role={role},url={side.engine.url},dp={side.ranks}{more}")
        ]


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with redis_server(tmp_path_factory.mktemp("queue")) as server:
        yield server


@pytest.fixture(scope="module")
def engines(fleet: Fleet, redis: RedisServer) -> Iterator[dict[str, Ranked]]:
    with ExitStack() as stack:
        starting = {}
        for kind, (ranks, mode) in KINDS.items():
            port, kv_port = free_port(), free_port(ranks - 1)
            transfer = pdgate_over("tcp", mode, lease_seconds=LEASE_SECONDS)
            said = transfer.flags("kv_both", port, kv_port)
            if kind == "reads":
                said = with_queue(said, redis.url)
            flags = [*said, "--no-enable-prefix-caching"]
            # With several, gauges are of whichever server has read an older step later.
            flags += ["--data-parallel-size", str(ranks), "--api-server-count", "1"]
            process = fleet.start(stack, f"our-ranks-{kind}", port, flags)
            starting[kind] = process, port, ranks, kv_port
        yield {
            kind: Ranked(ready(process, port), ranks, kv_port)
            for kind, (process, port, ranks, kv_port) in starting.items()
        }


@pytest.mark.parametrize(("prefill", "decode", "protocol", "mode"), WAYS, ids=NAMES)
def test_each_rank_takes_and_gives_its_share_and_answers_are_those_of_one_engine(
    prefill: str, decode: str, protocol: str, mode: str, engines: dict[str, Ranked], fleet: Fleet
) -> None:
    pair = RankedPair(engines[prefill], engines[decode], pdgate_over("tcp", KINDS[decode][1]))
    asked = [prompt(LENGTH, f"{prefill} {decode} {protocol} {mode} {n}") for n in range(CALLS)]
    with client(engines["one"].engine.url) as direct:
        expected = [complete(direct, each).answer for each in asked]
    loads, computed = f"{PREFIX}transfers_total", "vllm:request_success_total"
    loaded, prefilled = pair.decode.by_rank(loads), pair.prefill.by_rank(computed)
    sources = source_tokens(pair.decode)

    with (
        gateway_over(pair, mode, fleet.logs, protocol, flags=BY_TURNS) as gateway,
        client(gateway.url) as http,
        ThreadPoolExecutor(CALLS) as pool,
    ):
        said = list(pool.map(lambda each: complete(http, each), asked))
        records = [gateway.record(one.call_id) for one in said]

    assert [one.answer for one in said] == expected
    assert {(one["path"], one["kv"]) for one in records} == {("disaggregated", "handed_over")}
    # Each rank of decode has loaded what the gateway gave it, and computed no more than the last token.
    share = CALLS // pair.decode.ranks
    assert settles(lambda: grown(pair.decode, loads, loaded) == [share] * pair.decode.ranks)
    now = source_tokens(pair.decode)
    assert [
        Counter(after) - Counter(before) for before, after in zip(sources, now, strict=True)
    ] == [Counter(local_compute=share, external_kv_transfer=share * (LENGTH - 1))] * len(now)
    # And each rank of prefill has computed what it was asked for itself, not one for the other.
    share = CALLS // pair.prefill.ranks
    assert settles(lambda: grown(pair.prefill, computed, prefilled) == [share] * pair.prefill.ranks)
    for side in (pair.prefill, pair.decode):
        assert settles(lambda side=side: held_share(side.engine) == 0), side  # type: ignore[misc]


def test_a_prefill_worker_is_beside_one_rank_which_computes_all_that_it_takes(
    engines: dict[str, Ranked], fleet: Fleet, redis: RedisServer
) -> None:
    two, reads = engines["two"], engines["reads"]
    asked = [prompt(LENGTH, f"queued {number}") for number in range(CALLS)]
    with client(engines["one"].engine.url) as direct:
        expected = [complete(direct, each).answer for each in asked]
    loads, computed = f"{PREFIX}transfers_total", "vllm:request_success_total"
    before, firsts = reads.by_rank(loads), count()
    at = ["--engine", two.engine.url, "--kv", f"{LOOPBACK}:{two.kv_port + 1}"]
    words = ["prefill-worker", "--queue", redis.url, "--model", str(fleet.model), *at]
    log = fleet.logs / "our-ranks-worker.log"
    pair = RankedPair(two, reads, pdgate_over("tcp"))

    with ExitStack() as stack:
        command = [sys.executable, "-m", "pdgate", *words]
        worker = stack.enter_context(child(command, log=log, name="prefill-worker"))
        worker.wait_for_line("takes prompts for", START_SECONDS)
        over = gateway_over(pair, "batch", fleet.logs, "decode-first", flags=BY_TURNS)
        http = stack.enter_context(client(stack.enter_context(over).url))

        def both_load() -> bool:
            complete(http, prompt(LENGTH, f"first {next(firsts)}"))
            return all(grown(reads, loads, before))

        # A rank looks at the queue every two seconds: before that it computes, as no worker has asked for a while.
        assert settles(both_load)
        loaded, prefilled = reads.by_rank(loads), two.by_rank(computed)
        pool = stack.enter_context(ThreadPoolExecutor(CALLS))
        said = [one.answer for one in pool.map(lambda each: complete(http, each), asked)]

    assert said == expected
    share = CALLS // RANKS
    assert settles(lambda: grown(reads, loads, loaded) == [share] * RANKS)
    assert settles(lambda: grown(two, computed, prefilled) == [0, CALLS])
    for side in (two, reads):
        assert settles(lambda side=side: held_share(side.engine) == 0)  # type: ignore[misc]


def test_the_doctor_names_an_engine_whose_ranks_the_gateway_was_not_told_of(
    engines: dict[str, Ranked],
) -> None:
    two, one = engines["two"], engines["one"]
    kv = f"{LOOPBACK}:{two.kv_port}"
    prefill, decode = (
        f"role=prefill,url={two.engine.url},kv={kv}",
        f"role=decode,url={one.engine.url}",
    )
    protocol = ("--pdd-protocol", "vllm-kvt")

    untold = doctor("--instance", prefill, "--instance", decode, *protocol)
    told = doctor("--instance", f"{prefill},dp={RANKS}", "--instance", decode, *protocol)

    assert "ranks_unnamed" in untold
    assert "ranks_unnamed" not in told


def grown(of: Ranked, name: str, before: list[float]) -> list[float]:
    return [now - then for now, then in zip(of.by_rank(name), before, strict=True)]


def source_tokens(of: Ranked) -> list[dict[str, int]]:
    """Of prompts, by rank."""
    name = "vllm:prompt_tokens_by_source_total"
    return [
        {
            source: int(metric(of.engine, name, engine=str(rank), source=source))
            for source in ("local_compute", "external_kv_transfer")
        }
        for rank in range(of.ranks)
    ]
