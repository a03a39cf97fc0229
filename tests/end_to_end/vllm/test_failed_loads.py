"""Streams of stock vLLM whose KV does not come: by vllm-kvt in both modes, and by the queue.

vLLM's D ends a request whose load failed without a word of why, and streams of it without a finish
reason. None may reach a client as an answer; while anybody can answer, each is answered.
"""

import asyncio
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from signal import SIGCONT, SIGKILL, SIGSTOP, SIGTERM

import pytest

from pdgate.engine.vllm.metrics import PREFIX
from pdgate.lab.chaos import until
from tests.end_to_end.vllm.asking import Said, chat, client, complete, prompt
from tests.end_to_end.vllm.engines import BLOCK, LEASE_SECONDS, Engine, Fleet
from tests.end_to_end.vllm.gateway import UNWATCHED
from tests.end_to_end.vllm.metrics import Counted, metric
from tests.end_to_end.vllm.parts import frozen
from tests.end_to_end.vllm.trio import (
    BY_QUEUE,
    DEADLINE_SECONDS,
    SPLIT,
    Asked,
    Asking,
    Gateways,
    Trio,
    counted,
    gateways_over,
    running_trio,
    stopped,
)
from tests.support.processes import child
from tests.support.waited import STREAMS

WAIT_SECONDS = 15.0
BUSY_LOOPS = 2
WAITS_AT_DECODE = 2 * len(SPLIT)
"""Those of the ways by which decode is asked before prefill is."""


@pytest.fixture(scope="module")
def trio(fleet: Fleet, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trio]:
    with running_trio(fleet, tmp_path_factory.mktemp("redis")) as trio:
        yield trio


@pytest.fixture(scope="module")
def patient(trio: Trio, fleet: Fleet) -> Iterator[Gateways]:
    with gateways_over(trio, fleet, *UNWATCHED) as gateways:
        yield gateways


@pytest.fixture(scope="module")
def watchful(trio: Trio, fleet: Fleet) -> Iterator[Gateways]:
    """As set by default."""
    with gateways_over(trio, fleet) as gateways:
        yield gateways


async def nothing() -> None: ...


def all_right(asked: Sequence[Asked]) -> None:
    wrong = [
        (one.way, one.api, one.answer.error, one.answer.text, one.right.text)
        for one in asked
        if not one.is_right
    ]
    assert wrong == []


def none_waited(asked: Sequence[Asked], engines: int = 1) -> None:
    """Longer than the bound, and what this machine needs: for a step, four of which are plausible,
    and for the answer. By the queue decode waits for as long as a lease, and tries that twice.
    """
    late = [
        (one.way, one.api, one.answer.silence, one.right.silence)
        for one in asked
        if one.answer.silence
        > (2 * LEASE_SECONDS if one.way == BY_QUEUE else 0) + WAIT_SECONDS + 5 * one.right.silence
    ]
    assert late == []


def told(url: str, is_chat: bool, stream: bool, salt: str) -> Said:
    with client(url) as asked:
        if is_chat:
            return chat(asked, f"what is {salt}? " * 20, stream=stream)
        return complete(asked, prompt(5 * BLOCK + 3, salt), stream=stream)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("is_chat", [False, True], ids=["completions", "chat"])
def test_by_the_queue_the_answer_is_the_single_engines(
    trio: Trio, patient: Gateways, alone: Engine, is_chat: bool, stream: bool
) -> None:
    salt = f"queued {is_chat} {stream}"
    before = Counted.by(trio.decode)

    answer = told(patient[BY_QUEUE].url, is_chat, stream, salt).answer

    assert answer == told(alone.url, is_chat, stream, salt).answer
    assert Counted.by(trio.decode).transfers == before.transfers + 1


async def test_a_lease_that_is_over(trio: Trio, patient: Gateways, alone: Engine) -> None:
    """Prefill keeps KV for a decode engine that is frozen; the queue's Redis is away for as long."""

    def expired() -> float:
        return sum(metric(one, f"{PREFIX}expired_total") for one in trio.prefills)

    before = expired()

    async def over() -> bool:
        return await asyncio.to_thread(expired) >= before + len(SPLIT)

    async def thaw_late() -> None:
        try:
            await until(over, "prefill's leases to end", DEADLINE_SECONDS)
        finally:
            held_up.close()

    with ExitStack() as held_up:
        asking = Asking(patient, alone, "lease", SPLIT)
        trio.redis.stop()
        held_up.enter_context(stopped(trio.decode))
        try:
            all_right(await asking.during(thaw_late))
        finally:
            trio.redis.start()
    await trio.is_free()


async def test_engines_that_are_only_slow_keep_their_calls(
    trio: Trio, fleet: Fleet, alone: Engine
) -> None:
    """Three times the calls that decode takes at once, on a machine that is busy with other things. (Its gateways are
    its own: what they learn here of the engines' pace would allow frozen ones more time.)"""
    with ExitStack() as beside:
        watchful = beside.enter_context(gateways_over(trio, fleet))
        asking = Asking(watchful, alone, "slow", SPLIT * 4)
        for _ in range(BUSY_LOOPS):
            beside.enter_context(child([sys.executable, "-c", "while True: pass"]))
        all_right(await asking.during(nothing))
        for gateway in watchful.values():
            there = Engine(gateway.url, gateway.process)
            assert metric(there, "pdgate_legs_given_up_total") == 0


@pytest.mark.parametrize("part", ["API server", "EngineCore"])
async def test_prefills_that_are_frozen(
    trio: Trio, watchful: Gateways, alone: Engine, part: str
) -> None:
    asking = Asking(watchful, alone, f"frozen {part}", SPLIT)
    with ExitStack() as struck:
        for engine in trio.prefills:
            struck.enter_context(frozen(engine, part))
        asked = await asking.during(nothing)
    all_right(asked)
    # Cores are found out one after the other: a call may wait for the second, too.
    none_waited(asked, 2 if part == "EngineCore" else 1)
    await trio.is_free()


async def test_a_decode_whose_core_is_frozen(trio: Trio, watchful: Gateways, alone: Engine) -> None:
    """There is no other: each is told so in time, and none gets half an answer."""
    asking = Asking(watchful, alone, "frozen decode", [*STREAMS])
    with frozen(trio.decode, "EngineCore"):
        asked = await asking.during(nothing)
    assert [one for one in asked if not one.answer.failed_clearly or one.answer.text] == []
    none_waited(asked)
    await trio.is_free()


async def test_a_prefill_engine_that_dies_while_another_is_there(
    trio: Trio, patient: Gateways, alone: Engine
) -> None:
    """Both are frozen first, so that each has calls whose KV decode waits for."""
    first, second = trio.prefills
    before = {way: await counted(gateway, "ok") for way, gateway in patient.items()}

    async def kill() -> None:
        try:
            await trio.waits(WAITS_AT_DECODE)
            first.process.signal(SIGKILL)
        finally:
            second.process.signal(SIGCONT)

    asking = Asking(patient, alone, "dies", SPLIT)
    for engine in trio.prefills:
        engine.process.signal(SIGSTOP)
    all_right(await asking.during(kill))

    async def all_counted() -> bool:
        return all(
            [await counted(patient[way], "ok") - ok == len(SPLIT) for way, ok in before.items()]
        )

    await until(all_counted, "each call to be counted as one that went well")
    await trio.is_free()


async def test_without_another_decode_reads_the_prompt_itself(
    trio: Trio, patient: Gateways, alone: Engine
) -> None:
    """(It takes the other prefill engine too.)"""
    _, last = trio.prefills

    async def kill() -> None:
        try:
            await trio.waits(WAITS_AT_DECODE)
        finally:
            last.process.signal(SIGKILL)

    asking = Asking(patient, alone, "nobody is left", SPLIT)
    last.process.signal(SIGSTOP)
    all_right(await asking.during(kill))
    with client(patient["vllm-kvt", "batch"].url) as through:
        record = patient["vllm-kvt", "batch"].record(
            complete(through, prompt(BLOCK, "after all")).call_id
        )
    assert record["path"] == "decode_only"
    await trio.is_free()


def test_the_worker_leaves_in_order(trio: Trio) -> None:
    """Also of an engine that is dead."""
    trio.worker.signal(SIGTERM)

    assert trio.worker.wait_for_end() == 0
