"""decode-first on real processes: two prefill and two decode engines around a real Redis.

The engines that things happen to are the test's own, and known to the queue only.
"""

import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from pdgate.protocols.dialects import decode_first
from tests.end_to_end.reference.fleet import HTTP, Gateway, client
from tests.end_to_end.reference.queue_site import (
    CALLS,
    MANY_BLOCKS,
    MODEL,
    Site,
    asking,
    running_site,
    started,
)
from tests.end_to_end.reference.test_same_tokens import BLOCK_TOKENS, PROMPTS, TOKENS, said


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with running_site(tmp_path_factory.mktemp("site")) as site:
        yield site


@pytest.mark.matrix("gateway", "chat", "stream")
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("chat", [False, True], ids=["completions", "chat"])
@pytest.mark.parametrize("gateway", ["static", "dynamic"])
def test_the_answer_is_the_single_engines(
    site: Site, gateway: str, chat: bool, stream: bool
) -> None:
    before = site.counts()

    for text in PROMPTS.values():
        single = said(site.fleet.single().url, text, chat, stream)
        assert said(site.gateways[gateway].url, text, chat, stream) == single

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
    # Prefill counts when it has rested, and the KV was here before.
    site.wait_until(lambda: site.prefilled().since(before).computed > 0, "prefill's count")
    found = site.prefilled().since(before)
    assert (found.moved, found.computed) == (had, len(second) - had)


def test_a_gateway_sees_what_others_have_put_on_the_queue(site: Site) -> None:
    """It has no call at prefill itself, and would have gone on splitting."""
    decode, over = client(site.decode[0].url).completions, threading.Event()

    def ask(number: int) -> None:
        while not over.is_set():
            # Each is another prompt.
            decode.create(
                model=MODEL,
                prompt=f"{number} {time.monotonic()} {MANY_BLOCKS}",
                max_tokens=1,
                extra_body={"kv_transfer_params": dict(decode_first.QUEUED)},
            )

    engines = [word for one in site.prefill for word in ("--prefill", one.url)]
    engines += [word for one in site.decode for word in ("--decode", one.url)]
    rule = ("--disaggregate", "uncached_tokens_above", "--uncached-tokens", "1")
    known = ("--pdd-protocol", "decode-first", "--engine-metrics-interval", "0.2")
    with (
        site.fleet.serve(*known, *rule, *engines) as gateway,
        ThreadPoolExecutor(CALLS) as pool,
        release(over),
    ):
        answered = said(gateway.url, f"first {MANY_BLOCKS}", False, False)
        assert decisions(gateway, "prefill is busy") == 0
        others = [pool.submit(ask, number) for number in range(CALLS)]

        def is_busy() -> bool | None:
            answer = said(gateway.url, f"first {MANY_BLOCKS}", False, False)
            assert answer[0] == answered[0]
            return decisions(gateway, "prefill is busy") > 0 or None

        gateway.process.wait_until(is_busy, "a call that is not split")
        over.set()
        for one in others:
            one.result()


@contextmanager
def release(event: threading.Event) -> Iterator[None]:
    """Whatever happens, those that wait for it end."""
    try:
        yield
    finally:
        event.set()


def decisions(gateway: Gateway, reason: str) -> float:
    lines = HTTP.get(f"{gateway.url}/metrics").text.splitlines()
    return sum(
        float(line.rsplit(" ", 1)[1])
        for line in lines
        if line.startswith("pdgate_disaggregation_decisions_total{") and f'"{reason}"' in line
    )


def test_decode_decides_by_what_it_has_left_to_compute(site: Site) -> None:
    flags = ("--max-local-prefill", "40", "--max-prefill-queue", "100")
    decode = started(site.fleet, site.redis, "decode", *flags)
    chosen = "pdgate_engine_prompt_tokens_chosen_total"
    flags = ("--pdd-protocol", "decode-first", "--engine-metrics-interval", "0.2")
    with site.fleet.serve(
        *flags, "--prefill", site.prefill[0].url, "--decode", decode.url
    ) as gateway:
        first = f"Once there was {MANY_BLOCKS}"
        second = f"{first} and then?"
        assert len(second) - len(first) < 40 < len(first)

        answers = [said(gateway.url, text, False, False) for text in ("Hm.", first, second)]

    single = site.fleet.single().url
    assert answers == [said(single, text, False, False) for text in ("Hm.", first, second)]
    # A token of the tiny model is a byte, and one begins each prompt.
    there = (len(first) + 1) // BLOCK_TOKENS * BLOCK_TOKENS
    assert decode.metric(chosen) == len("Hm.") + 1 + len(second) + 1 - there
    assert decode.metric("pdgate_engine_kv_transfers_total") == 1


@pytest.mark.parametrize("empty", [False, True], ids=["with its data", "empty"])
def test_redis_may_be_away_and_nothing_is_lost(site: Site, empty: bool) -> None:
    """It goes while prompts are waiting and being computed, and more calls come meanwhile."""
    with asking(site, f"early {empty}", CALLS // 2):
        site.wait_until(lambda: site.depth().taken > 0, "a prompt that is being computed")
        site.says("static", "redis", "current")
        site.redis.stop()
        with asking(site, f"late {empty}"):
            site.wait_until(lambda: site.loading() >= CALLS, "calls that wait")
            site.says("static", "redis", "degraded")
            site.says("static", "prefill_queue", "degraded")
            if empty:
                site.redis.forget()
            site.redis.start()
    site.is_through()
    site.says("static", "redis", "current")
    site.says("static", "prefill_queue", "current")


def test_etcd_may_be_away_and_calls_go_on(site: Site) -> None:
    """Some are under way when it goes; and engines that it told of are still used."""
    with asking(site, "before etcd goes", CALLS // 2, "dynamic"):
        site.wait_until(lambda: site.depth().taken > 0, "a prompt that is being computed")
        site.says("dynamic", "directory", "current")
        site.etcd.stop()
    site.says("dynamic", "directory", "degraded")
    with asking(site, "while etcd is away", CALLS // 2, "dynamic"):
        pass
    site.etcd.start()
    site.says("dynamic", "directory", "current")
    with asking(site, "after etcd", 2, "dynamic"):
        pass
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
