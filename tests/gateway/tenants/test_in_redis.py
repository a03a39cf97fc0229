"""Accounts that replicas share: on a real Redis, which can be away."""

import asyncio
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import redis

from pdgate.gateway.security.token_limits import TokenLimits
from pdgate.gateway.tenants import account, in_redis
from pdgate.gateway.tenants.account import ReservedTokens, TokenShortage, TokensTaken
from pdgate.gateway.tenants.in_redis import PREFIX, RedisAccounts
from pdgate.gateway.tenants.local import LocalAccounts
from tests.support.redis import RedisServer, redis_server
from tests.support.waiting import PATIENCE_SECONDS, until

BUDGET = TokenLimits(budget_tokens=1000).each()
MINUTE = TokenLimits(tokens_per_minute=1000, prompt_tokens_per_day=500).each()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with redis_server(Path(tmp_path_factory.mktemp("redis"))) as server:
        yield server


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_redis, "ANSWER_SECONDS", PATIENCE_SECONDS)


def replica(server: RedisServer) -> RedisAccounts:
    return RedisAccounts(server.url, LocalAccounts())


async def test_two_replicas_together_let_in_what_the_budget_has_and_settle_once(
    server: RedisServer,
) -> None:
    one, other = replica(server), replica(server)
    asking = [
        asyncio.create_task(accounts.reserve("together", BUDGET, (50, 150)))
        for accounts in (one, other) * 10
    ]
    answers = [await each for each in asking]
    inside = [at for at, each in enumerate(answers) if isinstance(each.result, ReservedTokens)]
    refused = next(each.result for each in answers if isinstance(each.result, TokenShortage))

    assert len(inside) == 5
    assert refused.held
    assert one.local.everything().keys() == {"together"}
    for at in inside:
        reserved = answers[at].result
        assert isinstance(reserved, ReservedTokens)
        taken = TokensTaken(50, 40, 10, counted=50)
        (one, other)[at % 2].settle("together", BUDGET, reserved, taken, answers[at].holder)
    for accounts in (one, other):
        await accounts._send()
        # What was sent is not sent again.
        await accounts._send()

    for accounts in (one, other):
        view = await accounts.look("together", BUDGET)
        assert list(view.numbers[account.OF_ALL :]) == [250, 200, 50, 5, 250]
        assert list(view.numbers[account.OF_DAY : account.OF_ALL]) == [250, 200, 50, 5, 250]
        assert view.held == (0, 0)
        await accounts._redis.aclose()


async def test_redis_holds_to_every_kind_of_limit_as_this_host_does(server: RedisServer) -> None:
    accounts, local = replica(server), LocalAccounts()
    for needs in ((100, 200), (10, 1 << 40), (300, 100), (399, 1), (1, 300), (500, 0)):
        found = await accounts.reserve("kinds", MINUTE, needs)
        here = local.reserve("kinds", MINUTE, needs)

        assert type(found.result) is type(here.result), needs
        if isinstance(found.result, TokenShortage) and isinstance(here.result, TokenShortage):
            assert found.result.limit == here.result.limit
            assert found.result.held == here.result.held
        assert found.view.held == here.view.held
    await accounts._redis.aclose()


async def test_news_that_may_have_been_taken_counts_once(server: RedisServer) -> None:
    accounts = replica(server)
    answered = await accounts.reserve("once", BUDGET, (10, 10))
    assert isinstance(answered.result, ReservedTokens)
    accounts.settle(
        "once", BUDGET, answered.result, TokensTaken(7, 0, 3, counted=7), answered.holder
    )
    await accounts._send()
    number = accounts._number
    for _ in range(2):
        await accounts._ask("once", "", number, (0, 0), [7, 0, 3, 1, 7, 0, 0, 0], (), check=False)

    view = await accounts.look("once", BUDGET)

    assert list(view.numbers[account.OF_ALL :]) == [7, 0, 3, 1, 7]
    await accounts._redis.aclose()


async def test_what_a_replica_that_died_held_is_held_no_more(server: RedisServer) -> None:
    died, lives = replica(server), replica(server)
    await died.reserve("died", BUDGET, (900, 100))
    assert isinstance((await lives.reserve("died", BUDGET, (1, 1))).result, TokenShortage)
    # As its lease would end.
    await lives._redis.delete(f"{PREFIX}:alive:{died._holder}")

    assert isinstance((await lives.reserve("died", BUDGET, (900, 100))).result, ReservedTokens)
    assert (await lives.look("died", BUDGET)).held == (900, 100)
    for accounts in (died, lives):
        await accounts._redis.aclose()


async def test_while_redis_is_away_this_host_decides_and_tells_it_later(tmp_path: Path) -> None:
    with redis_server(tmp_path) as server:
        accounts = replica(server)
        running = asyncio.create_task(accounts.run())
        first = await accounts.reserve("away", BUDGET, (100, 500))
        assert isinstance(first.result, ReservedTokens)
        server.stop()

        refused = await accounts.reserve("away", BUDGET, (100, 500))
        second = await accounts.reserve("away", BUDGET, (100, 200))
        assert isinstance(refused.result, TokenShortage)
        assert isinstance(second.result, ReservedTokens)
        assert accounts.away
        for answered in (first, second):
            assert isinstance(answered.result, ReservedTokens)
            taken = TokensTaken(90, 0, 10, counted=90)
            accounts.settle("away", BUDGET, answered.result, taken, answered.holder)
        server.start()

        async def told() -> bool:
            view = await accounts.look("away", BUDGET)
            return not accounts.away and view.numbers[account.OF_ALL + 3] == 2

        await until(told, "news in Redis")
        with closing(redis.Redis.from_url(server.url)) as store:
            prompt: Any = store.hget(f"{PREFIX}:of:away", "w:11")
        assert prompt == b"180"
        running.cancel()
        await asyncio.wait([running])


async def test_what_stands_in_redis_and_is_no_number_is_nothing(server: RedisServer) -> None:
    with closing(redis.Redis.from_url(server.url)) as store:
        strange = {"w:1": "x", "w:99": "5", "w:": "1", "p:": "y", "n:z": "z", "q": "q"}
        store.hset(f"{PREFIX}:of:strange", mapping=strange)
    accounts = replica(server)

    answered = await accounts.reserve("strange", BUDGET, (10, 10))

    assert isinstance(answered.result, ReservedTokens)
    await accounts._redis.aclose()
