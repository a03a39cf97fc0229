"""Data-parallel ranks behind one URL, each of which is chosen, pinned and given up by itself."""

import asyncio
from typing import Any

from pdgate.gateway.config.sections import HealthSection
from pdgate.protocols.instance import Role
from tests.support.fleet import ANSWER, Engine, Held, as_json, engine_error, gateway_of, says
from tests.support.raw_server import Peer, Request, reply

RANKS = 4
PINNED = b"x-data-parallel-rank"


def ranked(role: Role, script: Any = None, dp: int = RANKS, **entry: Any) -> Engine:
    engine = Engine(role, script)
    engine.entry = {"dp": dp, **entry}
    return engine


def rank_of(request: Request) -> int:
    said = request.header(PINNED)
    assert said is not None
    return int(said)


async def test_calls_at_once_go_to_ranks_of_their_own() -> None:
    engine = ranked(Role.PLAIN, held := Held())
    async with gateway_of(engine) as gateway, asyncio.TaskGroup() as group:
        for _ in range(RANKS):
            group.create_task(gateway.chat())
        calls = [await held.next() for _ in range(RANKS)]

        assert sorted(rank_of(call.peer.request) for call in calls) == list(range(RANKS))
        for call in calls:
            await call.peer.send(as_json(ANSWER))


async def test_a_prompt_goes_where_it_was_read() -> None:
    prefill = ranked(Role.PREFILL)
    said = [{"role": "user", "content": "once upon a time " * 400}]
    async with gateway_of(
        prefill, Engine(Role.DECODE), prefill_policy="prefix_then_load"
    ) as gateway:
        for _ in range(6):
            assert (await gateway.chat(messages=said)).status_code == 200

        assert len({rank_of(call) for call in prefill.calls}) == 1


async def test_a_call_that_fails_at_one_rank_is_tried_at_another() -> None:
    async def one_is_sick(peer: Peer) -> None:
        failed = rank_of(peer.request) == 1
        await peer.send(engine_error(b"500 Oh", "no") if failed else as_json(ANSWER))

    engine = ranked(Role.PLAIN, one_is_sick)
    async with gateway_of(engine) as gateway:
        # Drawn among those that have as little to do.
        for _ in range(20 * RANKS):
            assert (await gateway.chat()).status_code == 200

        assert {rank_of(call) for call in engine.calls} == set(range(RANKS))


async def test_a_port_that_refuses_costs_one_attempt_and_not_one_for_each_rank() -> None:
    closing = b"connection: close"
    gone, other = (
        ranked(Role.PLAIN, says(as_json(ANSWER, b"200 OK", closing)), 8),
        Engine(Role.PLAIN),
    )
    # A connection that stays open would serve the calls of all ranks.
    gone.probes = {
        "/health": reply(b"", b"200 OK", closing),
        "/v1/models": as_json({"data": [{"id": "m"}]}, b"200 OK", closing),
    }
    # Only the calls find out: no probe comes between them.
    seldom = HealthSection(interval_seconds=3600, retry_seconds=3600)
    async with gateway_of(
        gone, other, max_attempts=2, health=seldom, plain_policy="round_robin"
    ) as gateway:
        assert (await gateway.chat()).status_code == 200
        gone.refuse()
        for _ in range(8):
            assert (await gateway.chat()).status_code == 200


async def test_sglang_is_told_both_ranks_in_the_body() -> None:
    sides = [ranked(role, dp=2, protocol="sglang") for role in (Role.PREFILL, Role.DECODE)]
    async with gateway_of(*sides) as gateway:
        # Ranks without load are drawn.
        for _ in range(20):
            assert (await gateway.chat()).status_code == 200

    for to_prefill in sides[0].bodies:
        room = to_prefill["bootstrap_room"]
        [to_decode] = [body for body in sides[1].bodies if body["bootstrap_room"] == room]
        assert to_decode["disagg_prefill_dp_rank"] == to_prefill["routed_dp_rank"]
        assert to_decode["routed_dp_rank"] == room % 2
    assert {body["routed_dp_rank"] for body in sides[0].bodies} == {0, 1}


async def test_an_engine_with_one_rank_is_not_pinned() -> None:
    engine = ranked(Role.PLAIN, dp=1)
    async with gateway_of(engine) as gateway:
        assert (await gateway.chat()).status_code == 200

        assert engine.calls[0].header(PINNED) is None
