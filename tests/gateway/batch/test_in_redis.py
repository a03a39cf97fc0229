"""Batches in Redis: leases that end, writes that are refused, and a Redis that is away, full, or new."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import msgspec
import openai
import pytest

from pdgate.gateway.batch import redis_lease
from pdgate.gateway.batch.lines import LineResult
from pdgate.gateway.batch.objects import BatchStatus
from pdgate.gateway.batch.redis_scripts import LEADER, PREFIX
from pdgate.gateway.batch.state import BatchState, LeadLost, StateAway
from tests.gateway.batch import batches
from tests.gateway.batch.batches import CLOSING, begun, ended, jsonl, line, plain, rows, serving
from tests.gateway.batch.states import ANY, LATER, States, batch, file
from tests.support.fleet import ANSWER, PATIENCE_SECONDS, Held, as_json, says
from tests.support.redis import RedisServer, redis_server
from tests.support.waiting import until

OVER = msgspec.structs.replace(batch("b"), status=BatchStatus.COMPLETED)


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RedisServer]:
    """One that a test may stop, which is that of what it serves."""
    with redis_server(tmp_path) as server:
        monkeypatch.setattr(batches, "STATE", server.url)
        yield server


@pytest.fixture
async def states(server: RedisServer, tmp_path: Path) -> AsyncIterator[States]:
    states = States(tmp_path, server.url)
    yield states
    # uvloop waits for ever, as it closes, for connections that are left.
    await states.close()


def everything(server: RedisServer) -> dict[bytes, bytes | None]:
    """All that is there, but for who leads."""
    with server.client() as client:
        keys = [key for key in client.keys("*") if key != LEADER]
        return {key: client.dump(key) for key in keys}


def lease_ends(server: RedisServer) -> None:
    """As after LEASE_SECONDS."""
    with server.client() as client:
        client.hset(LEADER, "until", 1)


async def filled(state: BatchState) -> None:
    for name in ("f0", "f1"):
        await state.expect(name, LATER)
        assert await state.add_file(file(name), ANY)
    await state.add_batch(batch("old"), 9)
    await state.finish(msgspec.structs.replace(OVER, id="old"), [])
    await state.add_batch(batch("b"), 9)
    await state.expect("out", LATER)
    await state.expect("gone", 0)
    await state.add_result("b", LineResult(1, False, b"x"))


WRITES: dict[str, Callable[[BatchState], Awaitable[object]]] = {
    "expect": lambda state: state.expect("more", LATER),
    "expect again": lambda state: state.expect("out", 7),
    "add_file": lambda state: state.add_file(file("out"), ANY),
    "remove_file": lambda state: state.remove_file("f0"),
    "removed": lambda state: state.removed("gone"),
    "add_batch": lambda state: state.add_batch(batch("more"), 9),
    "change": lambda state: state.change("b", lambda one: one.becomes(BatchStatus.FINALIZING, 1)),
    "fail": lambda state: state.change("b", lambda one: one.becomes(BatchStatus.FAILED, 1)),
    "add_result": lambda state: state.add_result("b", LineResult(2, False, b"y")),
    "finish": lambda state: state.finish(OVER, [file("out")]),
    "forget_batches": lambda state: state.forget_batches(LATER),
}


async def test_who_has_lost_the_lead_writes_nothing(
    states: States, server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each write of a process that was stopped for longer than its lease, and does not know it."""
    monkeypatch.setattr(redis_lease, "RENEW_SECONDS", 10 * PATIENCE_SECONDS)
    frozen, other = states.process(), states.process()
    await filled(frozen.routed)
    assert await frozen.lead.take()
    lease_ends(server)
    assert await other.lead.take()
    before = everything(server)

    for name, write in WRITES.items():
        with pytest.raises(LeadLost):
            await write(frozen.led)
        assert everything(server) == before, name

    # It learns of it by that, and goes on as one that does not lead.
    await asyncio.wait_for(frozen.lead.hold(), PATIENCE_SECONDS)
    assert not await frozen.lead.take()
    with pytest.raises(LeadLost):
        await frozen.led.removed("gone")
    assert everything(server) == before
    for name, write in WRITES.items():
        before = everything(server)
        await write(other.led)
        assert everything(server) != before, name
        with server.client() as client:
            client.flushdb()
        await other.lead.resign()
        assert await other.lead.take()
        await filled(other.routed)


async def test_a_lease_that_nobody_has_taken_is_still_its_owners(
    states: States, server: RedisServer
) -> None:
    """A Redis that was away for long costs no line that was under way."""
    one = states.process()
    await filled(one.routed)
    assert await one.lead.take()
    lease_ends(server)

    await one.led.add_result("b", LineResult(2, False, b"y"))

    assert await one.led.counts("b") == (2, 0)


async def test_a_lease_is_renewed_and_ends_with_its_process(
    states: States, server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_lease, "RENEW_SECONDS", 0.01)
    one, other = states.process(), states.process()
    assert await one.lead.take()
    lease_ends(server)
    holding = asyncio.create_task(one.lead.hold())

    def renewed() -> bool:
        with server.client() as client:
            return int(client.hget(LEADER, "until") or 0) > 1

    await until(renewed, "a renewal")
    assert not await other.lead.take()
    holding.cancel()
    await asyncio.wait([holding])
    lease_ends(server)

    assert await other.lead.take()
    # Which is not told anybody: it has nothing to resign.
    await one.lead.resign()
    assert not await one.lead.take()


async def test_a_lease_of_another_clock_is_none(states: States, server: RedisServer) -> None:
    one = states.process()
    with server.client() as client:
        client.hset(LEADER, mapping={"token": "x", "until": 1 << 52})

    assert await one.lead.take()


async def test_who_led_comes_back_before_who_could_not_ask(
    states: States, server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_lease, "RENEW_SECONDS", 0.05)
    one, other = states.process(), states.process()
    assert await one.lead.take()
    server.stop()
    with pytest.raises(StateAway):
        await other.lead.take()
    server.start()
    lease_ends(server)

    async def may_ask() -> bool:
        try:
            assert not await other.lead.take()
        except StateAway:
            return False
        return True

    await until(may_ask, "an answer")
    # Its lease is over, and it has LEASE_SECONDS to renew it.
    assert not await other.lead.take()
    await one.led.expect("f", LATER)


async def test_nothing_is_left_of_what_is_over(states: States, server: RedisServer) -> None:
    state = states.process().routed
    await filled(state)
    assert await state.finish(OVER, [file("out")])
    for name in ("f0", "f1", "out"):
        await state.remove_file(name)
    for name in await state.loose(LATER, 9):
        await state.removed(name)
    await state.forget_batches(LATER)

    assert everything(server).keys() == {f"{PREFIX}seq"}


async def test_what_is_none_of_ours_is_not_there(states: States, server: RedisServer) -> None:
    state = states.process().routed
    await filled(state)
    with server.client() as client:
        client.hset(f"{PREFIX}batch", "b", "[" * 100_000)
        client.hset(f"{PREFIX}file", "f0", '{"id": 7}')
        client.zadd(f"{PREFIX}unfinished", {"nothing": 0})

    assert await state.unfinished() == []
    assert await state.batch("b") is None
    assert await state.change("b", lambda one: one) is None
    found = await state.files("a", None, 9, newest_first=True, purpose=None)
    assert found is not None
    assert [one.id for one in found] == ["f1"]


async def test_a_full_redis_keeps_no_answer_and_lets_batches_end(
    states: States, server: RedisServer
) -> None:
    """What ends, and makes room by that, is not refused; what takes room is."""
    one = states.process()
    assert await one.lead.take()
    await filled(one.routed)
    await one.led.add_batch(batch("c"), 9)
    with server.client() as client:
        client.config_set("maxmemory", 1)
        refused = ("add_file", "add_batch", "add_result")
        for name in refused:
            with pytest.raises(StateAway):
                await WRITES[name](one.led)
        again = states.process()
        await one.lead.resign()
        assert await again.lead.take()

        await again.routed.change("c", lambda each: each.becomes(BatchStatus.CANCELLING, 1))
        for name in WRITES.keys() - {*refused, "fail", "forget_batches"}:
            await WRITES[name](again.led)
        await again.led.forget_batches(LATER)

        assert await again.led.unfinished() == [batch("c").becomes(BatchStatus.CANCELLING, 1)]
        assert await again.led.done("b") == set()
        client.config_set("maxmemory", 0)


async def answers_again(client: openai.AsyncOpenAI) -> bool:
    try:
        await client.batches.list()
    except openai.InternalServerError:
        return False
    return True


@pytest.mark.parametrize("how", ["stopped", pytest.param("frozen", marks=pytest.mark.slow)])
async def test_a_redis_that_is_away_costs_no_other_call_and_no_line(
    how: str, tmp_path: Path, server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    """Each line is asked once."""
    held = Held()
    engine = plain(held)
    content = jsonl(*(line(f"q{number}", seed=number) for number in range(5)))
    async with serving(tmp_path, engine, batch={"concurrency": 2}) as (gateway, client):
        batch = await begun(client, content)
        first, second = await held.next(), await held.next()
        (server.stop if how == "stopped" else server.freeze)()
        engine.script = says(as_json(ANSWER))
        await first.peer.send(CLOSING)
        await until(lambda: "the state of batches:" in caplog.text, "a failure")
        for ask in (
            lambda: client.batches.retrieve(batch.id),
            lambda: client.files.create(file=("in", content), purpose="batch"),
            lambda: client.batches.list(),
        ):
            with pytest.raises(openai.InternalServerError) as refused:
                await ask()
            assert (refused.value.status_code, refused.value.code) == (503, "batches_unavailable")
        assert (await gateway.chat(seed=99)).status_code == 200
        assert len(engine.calls) == 3
        (server.start if how == "stopped" else server.thaw)()
        await second.peer.send(CLOSING)

        await until(lambda: answers_again(client), "an answer")
        over = await ended(client, batch.id)
        assert over.status == "completed"
        answers = await rows(client, over.output_file_id)
        assert [one["custom_id"] for one in answers] == [f"q{number}" for number in range(5)]
        assert sorted(body["seed"] for body in engine.bodies) == [0, 1, 2, 3, 4, 99]


async def test_a_redis_that_has_forgotten_everything_has_no_batches(
    tmp_path: Path, server: RedisServer
) -> None:
    """Calls of what ran there end, and what is begun afterwards is served."""
    held = Held()
    engine = plain(held)
    async with serving(tmp_path, engine, batch={"concurrency": 1}) as (_, client):
        batch = await begun(client, jsonl(line("a"), line("b")))
        under_way = await held.next()
        server.stop()
        server.forget()
        server.start()

        await asyncio.wait_for(under_way.left, PATIENCE_SECONDS)

        engine.script = says(as_json(ANSWER))

        await until(lambda: answers_again(client), "an answer")
        with pytest.raises(openai.NotFoundError):
            await client.batches.retrieve(batch.id)
        next_one = await begun(client, jsonl(line("c")))
        over = await ended(client, next_one.id)
        assert [one["custom_id"] for one in await rows(client, over.output_file_id)] == ["c"]
        assert len(engine.calls) == 2
