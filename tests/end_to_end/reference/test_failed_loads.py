"""KV that does not come, and streams of every API by every protocol that wait for it.

None may end as a good one that is empty or cut, and the gateways are to count what clients saw.
Where there is nobody but one prefill engine, decode reads the prompt itself; one of SGLang cannot.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from functools import partial

import pytest
import pytest_asyncio

from pdgate.lab.chaos import until
from tests.end_to_end.reference.lone_pairs import (
    FROZEN_SECONDS,
    GATEWAYS,
    SPLIT,
    TOKENS,
    WAYS,
    Asked,
    Half,
    Site,
    each,
    lone_pairs,
)
from tests.support.scraped import scraped
from tests.support.waited import STREAMS

WAIT_SECONDS = FROZEN_SECONDS + 12.0
LONG_TOKENS = 150
SURELY_SPLIT = 4
"""Of a way's streams: chats and completions, each with and without usage."""

CANNOT_READ = ("sglang",)
"""Whose decode engine computes no prompt."""

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def site(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Site]:
    async with lone_pairs(tmp_path_factory.mktemp("redis")) as site:
        yield site


@pytest_asyncio.fixture(loop_scope="module")
async def well(site: Site) -> AsyncIterator[Site]:
    """Left as it was found. What is right is known before an engine is frozen, so that calls still find it up."""
    await site.learn()
    await until(site.ready, "all engines to be up")
    yield site


async def struck(
    site: Site, strike: Callable[[], Coroutine[None, None, None]], tokens: int = TOKENS
) -> list[Asked]:
    """All streams, and what happens meanwhile; the counters have to say what the clients saw."""
    await site.learn(tokens)
    before = {
        name: (await site.calls(name), await site.calls(name, outcome="ok")) for name in GATEWAYS
    }
    async with asyncio.TaskGroup() as group:
        asking = group.create_task(site.ask_all(tokens))
        group.create_task(strike())
    asked = asking.result()
    assert [one for one in asked if not one.is_right and not _failed(one)] == []
    well = Counter(one.gateway for one in asked if one.is_right)
    all_of = Counter(one.gateway for one in asked)
    for name, (calls, ok) in before.items():
        await until(partial(_grew, site, name, calls, all_of[name]), "all calls to be counted")
        assert await site.calls(name, outcome="ok") - ok == well[name], name
    return asked


async def _grew(site: Site, name: str, before: float, by: int) -> bool:
    return await site.calls(name) - before == by


def _failed(one: Asked) -> bool:
    return one.failed_before_its_first_byte or one.broke_off


def none_lost(asked: list[Asked]) -> None:
    lost = [one for one in asked if not one.is_right and one.model not in CANNOT_READ]
    assert lost == []
    assert max(one.answer.silence for one in asked) < WAIT_SECONDS


async def decodes_wait(site: Site) -> bool:
    """Each way is where only prefill can go on with it."""
    for gateway, model in WAYS:
        if gateway == "staged" or model == "vllm-nixl":
            there = await site.asked_of(gateway, model, "prefill")
        else:
            ways = sum(other == model and name != "staged" for name, other in WAYS)
            there = await site.loading(model) / ways
        if there < SURELY_SPLIT:
            return False
    return True


async def prefills_hold(site: Site) -> bool:
    """Each prefill engine that is asked before decode, or beside it, has KV for it."""
    for model in SPLIT:
        url = site.prefill[model].url
        if model == "vllm-kvt":
            there = await site.asked_of("staged", model, "decode")
        else:
            there = await scraped(site.http, url, "pdgate_engine_blocks_kept")
        if not there:
            return False
    return True


async def started_again(halves: Iterable[Half]) -> None:
    """Also what was not killed, because something failed before: that is to be seen, and the next test to be well."""
    halves = list(halves)
    await each(halves, "kill")
    await each(halves, "start")


async def test_a_prefill_that_is_killed_while_decode_waits_for_it(well: Site) -> None:
    handed_over = await well.handed_over()
    for half in well.prefill.values():
        half.freeze()

    async def kill() -> None:
        await until(lambda: decodes_wait(well), "calls that wait for prefill")
        await each(well.prefill.values(), "kill")

    try:
        none_lost(await struck(well, kill))
        assert await well.handed_over() == handed_over
    finally:
        await started_again(well.prefill.values())


async def test_a_prefill_that_is_killed_when_it_has_answered(well: Site) -> None:
    for half in well.decode.values():
        half.freeze()

    async def kill() -> None:
        try:
            await until(lambda: prefills_hold(well), "KV that waits for decode")
            await each(well.prefill.values(), "kill")
        finally:
            for half in well.decode.values():
                half.thaw()

    try:
        none_lost(await struck(well, kill))
    finally:
        await started_again(well.prefill.values())


async def test_a_prefill_that_is_frozen(well: Site) -> None:
    handed_over = await well.handed_over()
    for half in well.prefill.values():
        half.freeze()

    async def nothing_more() -> None: ...

    try:
        none_lost(await struck(well, nothing_more))
        assert await well.handed_over() == handed_over
    finally:
        for half in well.prefill.values():
            half.thaw()


async def test_kv_whose_lease_is_over(well: Site) -> None:
    """Redis is away for as long, and what decode would put on its queue is not put there."""
    for half in well.decode.values():
        half.freeze()
    well.redis.stop()

    async def leases_end() -> bool:
        ended = [
            await scraped(well.http, well.prefill[model].url, "pdgate_engine_leases_ended_total")
            for model in ("vllm-nixl", "vllm-mooncake")
        ]
        return all(after > before for before, after in zip(had, ended, strict=True))

    had = [
        await scraped(well.http, well.prefill[model].url, "pdgate_engine_leases_ended_total")
        for model in ("vllm-nixl", "vllm-mooncake")
    ]

    async def late() -> None:
        try:
            await until(leases_end, "leases to be over")
        finally:
            for half in well.decode.values():
                half.thaw()

    try:
        none_lost(await struck(well, late))
    finally:
        well.redis.start()


async def test_a_decode_that_is_killed_within_its_streams(well: Site) -> None:
    """What had begun ends with an error event, and what had not begun with an error."""

    async def all_live() -> bool:
        return all(well.live[api] > 0 for api in STREAMS)

    async def kill() -> None:
        await until(all_live, "a stream of every API")
        await each(well.decode.values(), "kill")

    try:
        asked = await struck(well, kill, LONG_TOKENS)
        assert {one.api for one in asked if one.broke_off} == STREAMS.keys()
    finally:
        await started_again(well.decode.values())
