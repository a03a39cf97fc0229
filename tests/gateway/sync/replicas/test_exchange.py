"""Replicas see each other's load, each call once, for as long as somebody answers for it."""

import asyncio
from collections.abc import Mapping

import pytest

from pdgate.gateway.sync.replicas import exchange as module
from pdgate.gateway.sync.replicas.entry import encode
from pdgate.gateway.sync.replicas.exchange import (
    AWAY_SECONDS,
    EXCHANGE_SECONDS,
    LEASE_SECONDS,
    RENEW_SECONDS,
    ReplicaStatus,
)
from pdgate.gateway.sync.shared_store import StoreState
from pdgate.scheduling.neighbours import SharedEndpoint
from tests.gateway.sync.replicas.sites import ENGINES, Process, Table
from tests.support.clock import Clock

HERE = "http://10.0.0.0"


@pytest.fixture
def clock() -> Clock:
    return Clock(100.0)


@pytest.fixture
def table(clock: Clock) -> Table:
    return Table(clock)


async def round_(*processes: Process) -> None:
    """Whoever told first has not heard the others yet."""
    for _ in range(2):
        for process in processes:
            await process.exchange.once()


async def test_a_replica_sees_what_the_others_have_in_flight(table: Table) -> None:
    one, two, three = (Process(table, name) for name in ("a", "b", "c"))
    with one.call(), two.call(tokens=20) as second:
        second.has_read(0.1)
        await round_(one, two, three)

        assert three.account() == (2, 30, 10, 1)
        assert one.account() == two.account() == three.account()
        assert one.endpoint().own_calls == 1
        assert three.load.replicas == {"a", "b"}
    await round_(one, two, three)

    assert [process.account() for process in (one, two, three)] == [(0, 0, 0, 0)] * 3


async def test_workers_of_one_gateway_leave_each_other_to_their_memory(table: Table) -> None:
    """They tell each other sooner; through Redis their calls would count twice."""
    one, sibling, other = Process(table, "a", "1"), Process(table, "a", "2"), Process(table, "b")
    with one.call(), sibling.call():
        shared = SharedEndpoint.of(sibling.endpoint())
        shared.take_in(sibling.endpoint(), shared.near, 1, 10, 10, 0)
        await round_(one, sibling, other)

        assert sibling.account()[0] == 2
        assert other.account()[0] == 2, "of each worker its own, and nothing of its neighbours'"
        assert other.load.replicas == {"a"}


async def test_a_replica_that_died_counts_until_its_lease_ends(table: Table, clock: Clock) -> None:
    one, two = Process(table, "a"), Process(table, "b")
    one.call()
    await round_(one, two)

    clock.now += LEASE_SECONDS - 0.1
    await two.exchange.once()
    assert two.account()[0] == 1
    clock.now += 0.2
    await two.exchange.once()
    assert two.account()[0] == 0
    assert two.load.replicas == frozenset()


async def test_a_replica_is_told_of_changes_and_else_only_as_often_as_the_lease_asks(
    table: Table, clock: Clock
) -> None:
    one = Process(table, "a")
    await one.exchange.once()
    for _ in range(5):
        await one.exchange.once()
    assert table.writes == 1

    one.call()
    await one.exchange.once()
    assert table.writes == 2

    clock.now += RENEW_SECONDS
    await one.exchange.once()
    assert table.writes == 3


async def test_redis_away_costs_the_others_load_when_leases_end_and_no_sooner(
    table: Table, clock: Clock
) -> None:
    one, two = Process(table, "a"), Process(table, "b")
    with one.call(), two.call():
        await round_(one, two)
        table.away = True
        assert await two.exchange.once() == AWAY_SECONDS
        assert (two.exchange.state, two.account()[0]) == (StoreState.DEGRADED, 2)

        clock.now += LEASE_SECONDS
        await two.exchange.once()
        assert two.account()[0] == 1, "its own stays"
        assert two.exchange.losses == 1

        # It comes back with nothing of what it had.
        table.away = False
        table.entries.clear()
        await round_(one, two)
        assert (two.exchange.state, two.account()[0]) == (StoreState.CURRENT, 2)


async def test_a_redis_that_never_answered_is_waited_for(table: Table) -> None:
    table.away = True
    one = Process(table, "a")

    await one.exchange.once()

    assert (one.exchange.state, one.exchange.losses) == (StoreState.WAITING, 0)


async def test_who_ends_is_gone_at_once_and_keeps_its_own_account(table: Table) -> None:
    one, two = Process(table, "a"), Process(table, "b")
    with one.call(), two.call():
        await round_(one, two)
        running = asyncio.create_task(one.exchange.run())
        # It runs until it waits for the next exchange.
        await asyncio.sleep(0)
        running.cancel()
        await asyncio.wait([running])

        await two.exchange.once()
        assert one.account()[0] == 1
        assert two.account()[0] == 1


@pytest.mark.parametrize(
    "told", [b"", b"nonsense", b'{"version": 9}', encode("c", {HERE: (-1, 0, 0, 0)})]
)
async def test_what_cannot_be_used_is_passed_over_and_counted_once(
    table: Table, clock: Clock, told: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    one, two = Process(table, "a"), Process(table, "b")
    table.entries["mad"] = told, clock.now + 60
    with one.call():
        await round_(one, two)
        await round_(one, two)

    assert two.load.refused == 1
    assert two.account()[0] == 1
    assert sum("mad" in message for message in caplog.messages) == 2, "once for each process"


async def test_an_engine_that_comes_back_under_its_id_has_the_others_calls_again(
    table: Table,
) -> None:
    one, two = Process(table, "a"), Process(table, "b")
    with one.call():
        await round_(one, two)
        two.endpoints.remove("e0")
        two.endpoints.put(ENGINES[0])
        assert two.account()[0] == 0

        await two.exchange.once()

        assert two.account()[0] == 1


async def test_engines_that_only_others_have_are_nothing_to_us(table: Table) -> None:
    one, two = Process(table, "a"), Process(table, "b")
    two.endpoints.remove("e0")
    with one.call(0), one.call(1):
        await round_(one, two)

    assert two.account(1)[0] == 1


async def test_reading_very_much_is_done_less_often(
    table: Table, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = Process(table, "a")
    assert await one.exchange.once() == EXCHANGE_SECONDS

    async def slow(_: Mapping[str, bytes]) -> None:
        clock.now += 1.0

    monkeypatch.setattr(one.load, "take_in", slow)
    assert await one.exchange.once() == pytest.approx(1.0 / module.SHARE)


async def test_operators_see_who_counts_and_whether_anybody_can(table: Table) -> None:
    one, two = Process(table, "a"), Process(table, "b")
    status = ReplicaStatus(two.exchange, two.endpoints)
    assert status.as_json() == {"state": "waiting", "others": 0}
    with one.call():
        await round_(one, two)
        assert status.as_json() == {"state": "current", "others": 1}
        shown = {
            (sample.name, sample.labels.get("instance")): sample.value
            for family in status.collect()
            for sample in family.samples
        }

    assert shown["pdgate_replicas", None] == 1
    assert shown["pdgate_replicas_degraded", None] == 0
    assert shown["pdgate_instance_replica_calls", "e0"] == 1
    assert shown["pdgate_instance_replica_calls", "e1"] == 0
