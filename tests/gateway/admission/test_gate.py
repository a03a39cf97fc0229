"""Each test lets tasks run until they all wait; nothing here takes time."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import ExitStack, asynccontextmanager, closing, suppress
from pathlib import Path
from typing import Any

import pytest

from pdgate.forwarders.pausing import Pausing
from pdgate.forwarders.retry import FRESH
from pdgate.gateway.admission import gate as gate_module
from pdgate.gateway.admission.gate import (
    FORGETS_FROM,
    FULL,
    GAVE_WAY,
    HOPELESS,
    LATE,
    MOST_AT_ONCE,
    TOO_LONG,
    Gate,
)
from pdgate.gateway.admission.giving_way import BACK_SECONDS, GivingWayGate, LowTurn
from pdgate.gateway.config import Settings
from pdgate.gateway.config.sections import AdmissionSection
from pdgate.gateway.sync.workers import SharedLines
from pdgate.gateway.sync.workers.neighbourhood import Neighbourhood
from pdgate.gateway.wiring.parts import gate_of
from pdgate.protocols.call import Call
from pdgate.protocols.errors import Overloaded
from pdgate.protocols.instance import Instance, Role
from pdgate.scheduling.admission import Limits, LinePlace
from pdgate.scheduling.admission.giving_way import RunningCall
from pdgate.scheduling.disaggregation import Never
from pdgate.scheduling.endpoint import Endpoint
from pdgate.scheduling.endpoints import Endpoints
from pdgate.scheduling.reservation import Reservation
from pdgate.scheduling.status import Status
from tests.support.fleets import prompt
from tests.support.scripted import Crossing, Scripted, fleet, scheduler
from tests.support.waiting import PATIENCE_SECONDS, until

MODEL = "tiny"


@pytest.fixture
def endpoints() -> Endpoints:
    found = Endpoints()
    for name, role in (("p", Role.PREFILL), ("d", Role.DECODE)):
        found.put(Instance(name, f"http://127.0.0.1/{name}", role, "vllm-nixl", model=MODEL))
        found.mark_up(name, [MODEL])
    return found


class Caller:
    """A task that goes through the gate and stays inside until it is told to leave."""

    def __init__(self, gate: Gate, place: LinePlace, model: str | None = MODEL) -> None:
        self.inside = asyncio.Event()
        self._may_leave = asyncio.Event()
        self.task = asyncio.create_task(self._call(gate, place, model))

    async def _call(self, gate: Gate, place: LinePlace, model: str | None) -> None:
        with gate.turn(model, place) as turn:
            if turn.waits:
                await turn.come()
            self.inside.set()
            await self._may_leave.wait()

    async def leave(self) -> None:
        self._may_leave.set()
        await self.task


Come = Callable[..., "Caller"]


@asynccontextmanager
async def callers(gate: Gate) -> AsyncIterator[Come]:
    made: list[Caller] = []

    def come(
        urgency: int = 3,
        tenant: str = "",
        model: str | None = MODEL,
        tokens: int = 10,
        call: Call | None = None,
    ) -> Caller:
        made.append(Caller(gate, LinePlace(urgency, tenant, tokens, call=call), model))
        return made[-1]

    try:
        yield come
    finally:
        for caller in made:
            caller.task.cancel()
        for caller in made:
            with suppress(asyncio.CancelledError, Overloaded):
                await caller.task


async def settled() -> None:
    """Every task has run until it waits for something else than a task."""
    for _ in range(10):
        await asyncio.sleep(0)


async def test_the_next_begins_when_one_ends(endpoints: Endpoints) -> None:
    async with callers(Gate(Limits(decode_concurrency=1), endpoints)) as come:
        first, second = come(), come()
        await settled()
        assert first.inside.is_set()
        assert not second.inside.is_set()

        await first.leave()
        await settled()

        assert second.inside.is_set()


async def test_the_next_begins_when_an_engine_has_read_its_prompt(endpoints: Endpoints) -> None:
    gate = Gate(Limits(prefill_concurrency=1), endpoints)
    prefill = endpoints.get("p")
    assert prefill is not None
    prefill.calls = 1
    async with callers(gate) as come:
        waiting = come()
        await settled()
        assert not waiting.inside.is_set()

        prefill.calls = 0
        gate.look()
        await settled()

        assert waiting.inside.is_set()


async def test_one_free_place_lets_one_begin_though_it_has_not_reserved_yet(
    endpoints: Endpoints,
) -> None:
    gate = Gate(Limits(prefill_concurrency=1), endpoints)
    prefill = endpoints.get("p")
    assert prefill is not None
    prefill.calls = 1
    async with callers(gate) as come:
        first, second = come(), come()
        await settled()
        prefill.calls = 0

        gate.look()
        gate.look()

        assert [count for _, count in gate.waiting()] == [1]
        # Who begins reserves at once, which this test's callers do not.
        prefill.calls = 1
        await settled()
        assert first.inside.is_set()
        assert not second.inside.is_set()


async def test_pages_that_an_engine_says_are_free_let_one_begin_at_the_next_tick(
    endpoints: Endpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gate_module, "TICK_SECONDS", 0.001)
    decode = endpoints.get("d")
    assert decode is not None
    decode.status = Status(kv_free=0.01)
    async with callers(Gate(Limits(kv_free=0.1), endpoints)) as come:
        waiting = come()
        await settled()
        assert not waiting.inside.is_set()

        decode.status = Status(kv_free=0.5)

        await asyncio.wait_for(waiting.inside.wait(), PATIENCE_SECONDS)


async def test_a_client_that_leaves_while_it_waits_leaves_nothing_behind(
    endpoints: Endpoints,
) -> None:
    gate = Gate(Limits(decode_concurrency=1), endpoints)
    async with callers(gate) as come:
        first, gone, last = come(), come(), come()
        await settled()

        gone.task.cancel()
        await first.leave()
        await settled()

        assert last.inside.is_set()
        assert not any(count for _, count in gate.waiting())


async def test_a_client_that_leaves_as_it_is_let_in_gives_its_place_on(
    endpoints: Endpoints,
) -> None:
    gate = Gate(Limits(decode_concurrency=1), endpoints)
    async with callers(gate) as come:
        come()
        gone, last = come(), come()
        await settled()

        gate.put(Limits(decode_concurrency=2))
        gone.task.cancel()
        await settled()

        assert not gone.inside.is_set()
        assert last.inside.is_set()


async def test_a_full_line_refuses_who_is_not_more_urgent(endpoints: Endpoints) -> None:
    gate = Gate(Limits(decode_concurrency=1, waiting=1), endpoints)
    async with callers(gate) as come:
        come()
        come()
        refused = come()

        with pytest.raises(Overloaded) as caught:
            await refused.task

    assert caught.value.retry_after_seconds
    assert gate.refused == {(MODEL, FULL): 1}


async def test_in_a_full_line_the_less_urgent_gives_way(endpoints: Endpoints) -> None:
    gate = Gate(Limits(decode_concurrency=1, waiting=1), endpoints)
    async with callers(gate) as come:
        first, less = come(), come(urgency=7)
        await settled()
        more = come(urgency=0)

        with pytest.raises(Overloaded):
            await less.task
        await first.leave()
        await settled()

        assert more.inside.is_set()
    assert gate.refused == {(MODEL, GAVE_WAY): 1}


async def test_nobody_waits_longer_than_may_be(
    endpoints: Endpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gate_module, "TICK_SECONDS", 0.001)
    gate = Gate(Limits(decode_concurrency=1, wait_seconds=0.002), endpoints)
    async with callers(gate) as come:
        come()
        waiting = come()

        with pytest.raises(Overloaded):
            await asyncio.wait_for(waiting.task, PATIENCE_SECONDS)

    assert gate.refused == {(MODEL, TOO_LONG): 1}


async def test_who_would_wait_too_long_is_told_at_once_and_when_to_come_again(
    endpoints: Endpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr(gate_module, "monotonic", lambda: now)
    gate = Gate(Limits(decode_concurrency=1, wait_seconds=10.0), endpoints)
    async with callers(gate) as come:
        inside = [come() for _ in range(5)]
        for caller in inside[:3]:
            await settled()
            now += 6.0
            await caller.leave()
        await settled()
        refused = come()

        with pytest.raises(Overloaded) as caught:
            await refused.task

    # One waits already, and one begins every 6 s: 12 s are 2 s more than 10.
    assert caught.value.retry_after_seconds == 2
    assert gate.refused == {(MODEL, HOPELESS): 1}


@pytest.mark.parametrize("urgency", [0, 3, 7])
async def test_a_flood_of_the_least_urgent_of_one_caller_makes_no_others_call_hopeless(
    endpoints: Endpoints, monkeypatch: pytest.MonkeyPatch, urgency: int
) -> None:
    now = 100.0
    monkeypatch.setattr(gate_module, "monotonic", lambda: now)
    gate = Gate(Limits(decode_concurrency=1, wait_seconds=10.0), endpoints)
    async with callers(gate) as come:
        flood = [come(7, "many") for _ in range(13)]
        for caller in flood[:3]:
            await settled()
            now += 2.0
            await caller.leave()
        await settled()

        others, more = come(urgency, "one"), come(7, "many")
        await settled()

        assert not others.task.done()
        assert isinstance(more.task.exception(), Overloaded)
        assert gate.refused == {(MODEL, HOPELESS): 1}


async def test_who_names_no_model_waits_in_the_line_of_the_only_one(endpoints: Endpoints) -> None:
    """Else it would have every second turn, whoever else waits."""
    gate = Gate(Limits(decode_concurrency=1), endpoints)
    async with callers(gate) as come:
        first, named, unnamed = come(), come(7), come(0, model=None)
        last = come(3, model=None)
        await settled()
        assert list(gate.waiting()) == [(MODEL, 3)]

        for before, after in ((first, unnamed), (unnamed, last), (last, named)):
            await before.leave()
            assert await begins(after)
        assert not gate.would_begin(None, LinePlace())
    assert list(gate.models) == [MODEL]


@asynccontextmanager
async def one_place_and_one_that_waits(
    endpoints: Endpoints, monkeypatch: pytest.MonkeyPatch, now: list[float], wait_seconds: float
) -> AsyncIterator[tuple[Gate, Come, list[Caller]]]:
    """Calls that took a second each, of which the last two are left: one inside, and one that waits."""
    monkeypatch.setattr(gate_module, "monotonic", lambda: now[0])
    gate = Gate(Limits(decode_concurrency=1, wait_seconds=wait_seconds), endpoints)
    async with callers(gate) as come:
        calls = [come() for _ in range(4)]
        for caller in calls[:2]:
            await settled()
            now[0] += 1.0
            await caller.leave()
        assert await begins(calls[2])
        yield gate, come, calls[2:]


async def client_leaves(gate: Gate, waits: Caller, now: list[float]) -> None:
    waits.task.cancel()


async def client_leaves_as_it_is_let_in(gate: Gate, waits: Caller, now: list[float]) -> None:
    waits.task.cancel()
    gate.put(Limits(decode_concurrency=2, wait_seconds=gate.limits.wait_seconds))
    await settled()
    gate.put(Limits(decode_concurrency=1, wait_seconds=gate.limits.wait_seconds))


async def is_told_that_it_waited_too_long(gate: Gate, waits: Caller, now: list[float]) -> None:
    now[0] += 31.0
    gate._next_check = 0.0
    gate._tick()
    with pytest.raises(Overloaded):
        await waits.task


@pytest.mark.parametrize(
    "goes", [client_leaves, client_leaves_as_it_is_let_in, is_told_that_it_waited_too_long]
)
async def test_calls_may_wait_after_the_last_of_a_line_has_left_it(
    endpoints: Endpoints,
    monkeypatch: pytest.MonkeyPatch,
    goes: Callable[[Gate, Caller, list[float]], Awaitable[None]],
) -> None:
    """Hours later the time since the last one began is no wait of anybody."""
    now = [100.0]
    async with one_place_and_one_that_waits(endpoints, monkeypatch, now, 30.0) as found:
        gate, come, (inside, waits) = found
        await goes(gate, waits, now)
        await inside.leave()
        await settled()
        now[0] += 3600.0

        calls = [come() for _ in range(3)]
        for call in calls:
            assert await begins(call)
            now[0] += 0.1
            await call.leave()
        assert (MODEL, HOPELESS) not in gate.refused


async def test_one_long_gap_does_not_keep_others_from_waiting_for_ever(
    endpoints: Endpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first may always wait, and if none may behind it, what it waited says that engines are quick again."""
    now = [100.0]
    async with one_place_and_one_that_waits(endpoints, monkeypatch, now, 10.0) as found:
        _, come, (inside, waits) = found
        now[0] += 9.0
        behind = come()
        await settled()
        now[0] += 300.0
        await inside.leave()
        await waits.leave()
        await behind.leave()
        refused = []
        for _ in range(100):
            calls = [come() for _ in range(4)]
            await settled()
            refused.append(sum(call.task.done() for call in calls))
            for call in calls:
                now[0] += 0.1
                with suppress(Overloaded):
                    await call.leave()
            await settled()

        assert max(refused) <= 2
        assert refused[-10:] == [0] * 10


async def test_a_model_that_nobody_serves_is_not_waited_for_and_not_remembered(
    endpoints: Endpoints,
) -> None:
    gate = Gate(Limits(decode_concurrency=1), endpoints)
    async with callers(gate) as come:
        strangers = [come(model=f"unknown {number}") for number in range(3)]
        await settled()

        assert all(stranger.inside.is_set() for stranger in strangers)
    assert not list(gate.waiting())


@pytest.mark.parametrize("processes", [1, 2])
async def test_models_that_come_and_go_are_forgotten(
    endpoints: Endpoints, tmp_path: Path, processes: int
) -> None:
    """Adapters whose names have a version; not while a call of theirs runs."""
    with closing(Neighbourhood(tmp_path)) as neighbourhood:
        lines = SharedLines(neighbourhood, lambda: None) if processes > 1 else None
        gate = Gate(Limits(decode_concurrency=1000), endpoints, lines)
        with gate.turn(MODEL, LinePlace()):
            pass
        async with callers(gate) as come:
            for number in range(100):
                name = f"adapter {number}"
                for engine in ("p", "d"):
                    endpoints.mark_up(engine, [MODEL, name])
                # Some are served by engines of their own.
                endpoints.put(
                    Instance(name, f"http://{name}", Role.PLAIN, "", model=f"{name} alone")
                )
                endpoints.mark_up(name, [f"{name} alone"])
                with gate.turn(name, LinePlace()), gate.turn(f"{name} alone", LinePlace()):
                    pass
                endpoints.remove(name)
                if number == 20:
                    stays = come(model=name)
                    assert await begins(stays)

            assert len(gate.models) < 2 * FORGETS_FROM
            assert len(gate._there) < 2 * FORGETS_FROM
            assert gate.models["adapter 20"].begun == 1
            await stays.leave()
            assert gate.models[MODEL].there.begun == 0


async def test_wider_limits_let_in_who_waits(endpoints: Endpoints) -> None:
    gate = Gate(Limits(decode_concurrency=1), endpoints)
    async with callers(gate) as come:
        come()
        second = come()
        await settled()

        gate.put(Limits(decode_concurrency=2))
        await settled()

        assert second.inside.is_set()


async def test_thousands_are_let_in_some_at_a_time(endpoints: Endpoints) -> None:
    """All at once, they held everybody else up for a tenth of a second."""
    gate = Gate(Limits(decode_concurrency=1, waiting=10_000), endpoints)
    with ExitStack() as turns:
        for _ in range(3 * MOST_AT_ONCE):
            turns.enter_context(gate.turn(MODEL, LinePlace()))
        gate.put(Limits(decode_concurrency=10_000))
        ((_, left),) = gate.waiting()
        assert left >= 2 * MOST_AT_ONCE - 1
        await settled()
        assert list(gate.waiting()) == [(MODEL, 0)]


async def test_thousands_are_turned_away_some_at_a_time(
    endpoints: Endpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr(gate_module, "monotonic", lambda: now)
    gate = Gate(Limits(decode_concurrency=1, waiting=10_000, wait_seconds=10.0), endpoints)
    with ExitStack() as turns:
        for _ in range(3 * MOST_AT_ONCE):
            turns.enter_context(gate.turn(MODEL, LinePlace()))
        now += 5.0
        turns.enter_context(gate.turn(MODEL, LinePlace()))
        now += 6.0
        gate._tick()
        assert gate.refused == {(MODEL, TOO_LONG): MOST_AT_ONCE}
        await settled()
        assert gate.refused == {(MODEL, TOO_LONG): 3 * MOST_AT_ONCE - 1}
        assert list(gate.waiting()) == [(MODEL, 1)]


async def test_narrower_limits_hold_for_the_next_call(endpoints: Endpoints) -> None:
    gate = Gate(Limits(decode_concurrency=9), endpoints)
    async with callers(gate) as come:
        assert await begins(come())

        gate.put(Limits(decode_concurrency=1))
        assert not await begins(come())


async def test_an_engine_that_left_takes_its_places_with_it(endpoints: Endpoints) -> None:
    endpoints.put(Instance("e", "http://127.0.0.1/e", Role.DECODE, "vllm-nixl", model=MODEL))
    endpoints.mark_up("e", [MODEL])
    gate = Gate(Limits(decode_concurrency=1), endpoints)
    async with callers(gate) as come:
        assert await begins(come())

        endpoints.remove("e")
        assert not await begins(come())


async def test_prefill_engines_that_are_busy_with_others_calls_are_waited_for(
    endpoints: Endpoints,
) -> None:
    """Those of another model, or of other workers."""
    gate = Gate(Limits(prefill_concurrency=2), endpoints)
    prefill = endpoints.get("p")
    assert prefill is not None
    async with callers(gate) as come:
        assert await begins(come())

        prefill.calls = 2
        waiting = come()
        assert not await begins(waiting)

        prefill.calls = 1
        gate.look()
        assert await begins(waiting)


async def test_who_would_be_read_too_late_is_told_so_at_once(endpoints: Endpoints) -> None:
    """And when it may come again: an engine has to read what is too much first."""
    gate = Gate(Limits(ttft_seconds=5.0), endpoints)
    prefill = endpoints.get("p")
    assert prefill is not None
    async with callers(gate) as come:
        prefill.unread_tokens = 1_000_000
        assert await begins(come()), "nobody knows how long it takes"
        for tokens in (500, 1000, 1500) * 3:
            prefill.latency.has_read(tokens, 0.0, tokens / 1000, None)

        prefill.unread_tokens = 15_000
        refused = come()
        await settled()
        error = refused.task.exception()
        assert isinstance(error, Overloaded)
        assert error.retry_after_seconds in (10, 11, 12)
        assert gate.refused == {(MODEL, LATE): 1}

        prefill.unread_tokens = 3_000
        assert await begins(come())


async def test_who_stays_at_decode_is_told_so_only_if_decode_reads_it_too_late(
    endpoints: Endpoints,
) -> None:
    """What prefill has to read keeps no such call waiting."""
    gate = Gate(
        Limits(ttft_seconds=5.0),
        endpoints,
        stays=lambda call, prefill: call.prompt_tokens <= 1000,
    )
    prefill, decode = endpoints.get("p"), endpoints.get("d")
    assert prefill is not None
    assert decode is not None
    for tokens in (500, 1000, 1500) * 3:
        prefill.latency.has_read(tokens, 0.0, tokens / 1000, None)
        decode.latency.has_read(tokens, 0.0, tokens / 1000, None)
    prefill.unread_tokens = 15_000
    async with callers(gate) as come:
        assert await begins(come(tokens=50, call=prompt(50)))

        long = come(tokens=2000, call=prompt(2000))
        assert not await begins(long)
        assert isinstance(long.task.exception(), Overloaded)

        decode.unread_tokens = 7_000
        short = come(tokens=50, call=prompt(50))
        assert not await begins(short)
        error = short.task.exception()
        assert isinstance(error, Overloaded)
        assert error.retry_after_seconds in (2, 3)
        assert gate.refused == {(MODEL, LATE): 2}


async def begins(caller: Caller) -> bool:
    await settled()
    return caller.inside.is_set()


async def test_calls_wait_here_while_engines_have_enough_to_read(endpoints: Endpoints) -> None:
    """And one that cannot be in time any more lets those pass that can."""
    limits = Limits(prefill_seconds=1.0, in_time_seconds=4.0, late_share=0.0)
    gate = Gate(limits, endpoints)
    prefill = endpoints.get("p")
    assert prefill is not None
    prefill.unread_tokens = 30_000
    async with callers(gate) as come:
        late, in_time = come(tokens=60_000), come(tokens=100)
        await settled()
        assert not late.inside.is_set()
        assert not in_time.inside.is_set()

        prefill.unread_tokens = 5_000
        gate.look()
        # With what it reserves.
        prefill.unread_tokens = 20_000
        assert await begins(in_time)
        gate.look()
        assert not await begins(late)

        prefill.unread_tokens = 0
        gate.look()
        assert await begins(late)


async def test_a_call_whose_prompt_is_cached_can_be_in_time_for_longer(
    endpoints: Endpoints,
) -> None:
    """It is due by what is left to read of it, so it goes before one that is late."""
    limits = Limits(prefill_seconds=1.0, in_time_seconds=4.0, late_share=0.0)
    gate = Gate(limits, endpoints, cached=lambda call: {"p": call.prompt_tokens - 100})
    prefill = endpoints.get("p")
    assert prefill is not None
    prefill.unread_tokens = 30_000
    async with callers(gate) as come:
        late = come(tokens=60_000)
        await settled()
        cached = come(tokens=60_000, call=prompt(60_000))
        await settled()

        prefill.unread_tokens = 5_000
        gate.look()
        # With what it reserves.
        prefill.unread_tokens = 65_000
        assert await begins(cached)
        assert not late.inside.is_set()


async def test_calls_without_tokens_are_served_one_after_another(endpoints: Endpoints) -> None:
    async with callers(Gate(Limits(decode_concurrency=1), endpoints)) as come:
        calls = [come(tokens=0) for _ in range(5)]
        for call in calls:
            await asyncio.wait_for(call.inside.wait(), PATIENCE_SECONDS)
            await call.leave()


async def test_a_limit_holds_for_all_models_of_an_engine_and_each_has_its_turns(
    endpoints: Endpoints,
) -> None:
    """Adapters are models of their own, and who names no model means one of them."""
    names = [MODEL, "adapter", "other"]
    for name in ("p", "d"):
        endpoints.mark_up(name, names)
    async with callers(Gate(Limits(decode_concurrency=1), endpoints)) as come:
        waiting = [come(model=name) for name in names for _ in range(3)]
        served = []
        for _ in range(4):
            await settled()
            (inside,) = [caller for caller in waiting if caller.inside.is_set()]
            served.append(waiting.index(inside) // 3)
            waiting[waiting.index(inside)] = come(model=names[served[-1]])
            await inside.leave()

        # The first one had no turn, as nothing waited.
        assert served[0] == 0
        assert sorted(served[1:]) == [0, 1, 2]


async def test_who_gave_way_waits_for_no_more_urgent_line_that_has_no_room(
    endpoints: Endpoints,
) -> None:
    """It has one engine in common with theirs, and another one is free."""
    for name in ("p", "d"):
        endpoints.mark_up(name, [MODEL, "b"])
    endpoints.put(Instance("d2", "http://127.0.0.1/d2", Role.DECODE, "vllm-nixl", model=MODEL))
    endpoints.mark_up("d2", [MODEL])
    gate = Gate(Limits(decode_concurrency=1, give_way=1), endpoints)
    gate.giving_way = GivingWayGate(gate)
    async with callers(gate) as come:
        assert await begins(come(model="b"))
        assert not await begins(come(model="b", urgency=0))
        with gate.turn(MODEL, LinePlace(7)) as turn:
            assert isinstance(turn, LowTurn)
            await asyncio.wait_for(turn.again(), PATIENCE_SECONDS)


async def test_no_less_urgent_call_of_its_model_passes_who_gave_way_and_waits_for_others(
    endpoints: Endpoints,
) -> None:
    """The more urgent ones of another model of the same engines go first, and then it."""
    for name in ("p", "d"):
        endpoints.mark_up(name, [MODEL, "b"])
    gate = Gate(Limits(decode_concurrency=1, give_way=1), endpoints)
    gate.giving_way = GivingWayGate(gate)
    order: list[str] = []

    async def ask(name: str, urgency: int) -> None:
        with gate.turn(name, LinePlace(urgency)) as turn:
            await turn.come()
            order.append(f"{name} {urgency}")
            await settled()

    async with asyncio.TaskGroup() as calls:
        with gate.turn(MODEL, LinePlace(5)) as turn:
            assert isinstance(turn, LowTurn)
            for name, urgency in ((MODEL, 7), (MODEL, 7), ("b", 0), ("b", 0), (MODEL, 4)):
                calls.create_task(ask(name, urgency))
            await settled()
            await turn.again()
            order.append("back")

    assert sorted(order[:3]) == ["b 0", "b 0", f"{MODEL} 4"]
    assert order[3:] == ["back", f"{MODEL} 7", f"{MODEL} 7"]


async def test_calls_of_a_model_that_nobody_serves_any_more_do_not_wait_for_who_gave_way(
    endpoints: Endpoints,
) -> None:
    gate = Gate(Limits(decode_concurrency=1, give_way=1), endpoints)
    gate.giving_way = GivingWayGate(gate)
    async with callers(gate) as come:
        with gate.turn(MODEL, LinePlace(6)) as turn:
            assert isinstance(turn, LowTurn)
            waits, inside = come(7), come()
            await settled()
            back = asyncio.create_task(turn.again())
            assert await begins(inside)
            endpoints.remove("p")
            endpoints.remove("d")
            await inside.leave()

            assert await begins(waits)
            assert not back.done()
            back.cancel()
            with suppress(asyncio.CancelledError):
                await back


@pytest.mark.parametrize("urgency", [3, 6, 7])
async def test_no_call_that_is_not_more_urgent_overtakes_who_gave_way(
    endpoints: Endpoints, urgency: int
) -> None:
    """Nor where there is room that nothing has told of: it is found by who comes."""
    gate = Gate(Limits(decode_concurrency=1, kv_free=0.1, give_way=1), endpoints)
    gate.giving_way = GivingWayGate(gate)
    decode = endpoints.get("d")
    assert decode is not None
    async with callers(gate) as come:
        with gate.turn(MODEL, LinePlace(6)) as turn:
            assert isinstance(turn, LowTurn)
            decode.status = Status(kv_free=0.01)
            back = asyncio.create_task(turn.again())
            await settled()
            decode.status = Status(kv_free=0.5)

            newcomer = come(urgency=urgency)

            assert await begins(newcomer) == (urgency < 6)
            assert back.done() == (urgency >= 6)
            if urgency < 6:
                await newcomer.leave()
            await asyncio.wait_for(back, PATIENCE_SECONDS)


async def test_where_who_gave_way_is_back_calls_need_no_closer_look(endpoints: Endpoints) -> None:
    gate = Gate(Limits(decode_concurrency=2, give_way=1), endpoints)
    gate.giving_way = GivingWayGate(gate)
    with gate.turn(MODEL, LinePlace(7)) as turn:
        assert isinstance(turn, LowTurn)
        back = asyncio.create_task(turn.again())
        await settled()
        await back
        with gate.turn(MODEL, LinePlace()):
            assert gate.models[MODEL].ample.begun == 2


@pytest.mark.parametrize(("comes", "goes"), [("p2", ""), ("", "d2"), ("d3", "d2")])
async def test_a_limit_holds_for_models_that_have_no_call_since_an_engine_came_or_went(
    endpoints: Endpoints, comes: str, goes: str
) -> None:
    def add(name: str, role: Role) -> None:
        endpoints.put(Instance(name, f"http://127.0.0.1/{name}", role, "vllm-nixl", model=MODEL))
        endpoints.mark_up(name, [MODEL, "b"])

    add("p", Role.PREFILL)
    add("d", Role.DECODE)
    add("d2", Role.DECODE)
    gate = Gate(Limits(decode_concurrency=2), endpoints)
    async with callers(gate) as come:
        for _ in range(4):
            assert await begins(come(model="b"))
        waits = come()
        assert not await begins(waits)
        waits.task.cancel()
        if goes:
            endpoints.mark_down(goes)
        if comes:
            add(comes, Role.PREFILL if comes == "p2" else Role.DECODE)

        assert not await begins(come())


async def test_an_engine_that_comes_or_goes_costs_no_look_at_the_engines_of_each_model(
    endpoints: Endpoints,
) -> None:
    """A thousand adapters with calls, on 64 engines, took 0.2 s; the limit holds for all of them nonetheless."""
    adapters = [f"adapter {number}" for number in range(50)]
    names = [MODEL, *adapters]
    for name in ("p", "d"):
        endpoints.mark_up(name, names)
    gate = Gate(Limits(decode_concurrency=30), endpoints)
    async with callers(gate) as come:
        calls = [come(model=name) for name in [MODEL, *adapters]]
        await settled()
        assert sum(call.inside.is_set() for call in calls) == 30
        endpoints.put(Instance("d2", "http://127.0.0.1/d2", Role.DECODE, "vllm-nixl", model=MODEL))
        endpoints.mark_up("d2", names[:-1])
        assert not endpoints.eligible_sets

        with gate.turn(MODEL, LinePlace()):
            pass

        assert len(endpoints.eligible_sets) <= 3
        last = gate.models[adapters[-1]]
        assert last.there is not gate.models[MODEL].there
        there = gate.models[MODEL].there
        assert (there.begun, there.waiting, last.there.waiting) == (30, 20, 1)

        endpoints.remove("d2")
        gate.look()
        assert len(endpoints.eligible_sets) <= 3
        assert last.there is gate.models[MODEL].there
        assert (last.there.begun, last.there.waiting) == (30, 21)
        for name in ("p", "d"):
            endpoints.mark_up(name, names[:-1])
        gate.look()
        assert await begins(calls[-1]), "it learns that no engine serves it"


async def test_nobody_passes_those_that_wait_for_the_same_engines_by_another_model(
    endpoints: Endpoints,
) -> None:
    """Also where there is room that nothing has told of."""
    for name in ("p", "d"):
        endpoints.mark_up(name, [MODEL, "adapter"])
    (decode,) = (one for one in endpoints if one.instance.role is Role.DECODE)
    decode.status = Status(kv_free=0.05)
    async with callers(Gate(Limits(kv_free=0.1), endpoints)) as come:
        waits = come()
        await settled()
        decode.status = Status(kv_free=0.5)
        newcomer = come(model="adapter")
        await asyncio.wait_for(newcomer.inside.wait(), PATIENCE_SECONDS)

        assert waits.inside.is_set()


@pytest.mark.parametrize("processes", [1, 2])
async def test_a_look_at_engines_without_room_asks_once_for_all_their_models(
    endpoints: Endpoints, tmp_path: Path, processes: int
) -> None:
    asked: list[str] = []

    class WatchedLimits(Limits):
        def __getattribute__(self, name: str) -> Any:
            if name == "decode_concurrency":
                asked.append(name)
            return super().__getattribute__(name)

    names = [MODEL, *(f"adapter {number}" for number in range(20))]
    for name, role in (("p2", Role.PREFILL), ("d2", Role.DECODE)):
        endpoints.put(Instance(name, f"http://127.0.0.1/{name}", role, "vllm-nixl", model="other"))
        endpoints.mark_up(name, ["other"])
    for name in ("p", "d"):
        endpoints.mark_up(name, names)
    with closing(Neighbourhood(tmp_path)) as neighbourhood:
        lines = SharedLines(neighbourhood, lambda: None) if processes > 1 else None
        gate = Gate(WatchedLimits(decode_concurrency=1), endpoints, lines)
        await _asks_once(gate, names, asked)


async def _asks_once(gate: Gate, names: Sequence[str], asked: list[str]) -> None:
    async with callers(gate) as come:
        inside = [come(), come(model="other")]
        waiting = [come(model=name) for name in [*names, "other"]]
        await settled()
        asked.clear()
        gate.look()
        assert len(asked) == 2

        await inside[1].leave()
        await settled()
        assert [caller.inside.is_set() for caller in waiting] == [False] * len(names) + [True]


async def test_a_call_that_stays_at_decode_does_not_wait_for_prefill(endpoints: Endpoints) -> None:
    asked: list[str] = []

    def stays(call: Call, prefill: Endpoint) -> bool:
        asked.append(prefill.instance.id)
        return call.prompt_tokens <= 1000

    gate = Gate(Limits(prefill_seconds=1.0), endpoints, stays=stays)
    prefill, decode = endpoints.get("p"), endpoints.get("d")
    assert prefill is not None
    assert decode is not None
    prefill.unread_tokens = 50_000
    async with callers(gate) as come:
        long, short = come(call=prompt(4000)), come(call=prompt(10))
        await settled()
        assert not long.inside.is_set()
        assert short.inside.is_set()
        assert asked == ["p", "p"]

        decode.unread_tokens = 50_000
        busy = come(call=prompt(10))
        await settled()
        assert not busy.inside.is_set()


async def test_to_ask_whether_a_call_would_begin_takes_no_place_from_those_who_wait(
    endpoints: Endpoints,
) -> None:
    gate = Gate(Limits(decode_concurrency=1, waiting=1), endpoints)
    assert gate.would_begin("unknown", LinePlace())
    async with callers(gate) as come:
        assert gate.would_begin(MODEL, LinePlace())
        first, second = come(), come(urgency=7)
        await settled()

        assert not gate.would_begin(MODEL, LinePlace(0)), "the second one would leave for it"
        with pytest.raises(Overloaded):
            gate.would_begin(MODEL, LinePlace(7))
        assert gate.refused == {(MODEL, FULL): 1}
        await settled()
        assert not second.task.done()

        await first.leave()
        assert await begins(second)


async def test_the_body_of_a_call_is_not_kept_for_the_line(endpoints: Endpoints) -> None:
    """Who leaves may be remembered as one of the longest."""
    gate = Gate(Limits(decode_concurrency=1), endpoints)
    with gate.turn(MODEL, LinePlace()):
        place = LinePlace(call=prompt(1000))
        with gate.turn(MODEL, place) as turn:
            assert turn.waits
            assert place.call is None


class Pausable(Pausing):
    """What any call that may give way says while it runs; `paused`: it was told to."""

    paused = False

    def running(self, urgency: int, counts: bool) -> RunningCall:
        return RunningCall(urgency, answering="d", tokens=100, counts=counts)

    def pause(self) -> None:
        self.paused = True


@pytest.mark.parametrize("model", [MODEL, "adapter"])
async def test_a_call_by_another_model_of_the_same_engines_gives_way(
    endpoints: Endpoints, model: str
) -> None:
    for name in ("p", "d"):
        endpoints.mark_up(name, [MODEL, "adapter"])
    gate = Gate(Limits(decode_concurrency=1, give_way=1), endpoints)
    gate.giving_way = GivingWayGate(gate)
    async with callers(gate) as come:
        with gate.turn(model, LinePlace(7)) as turn:
            assert isinstance(turn, LowTurn)
            turn.pausing = pausing = Pausable(turn.again)
            come(urgency=0)
            await settled()
            assert pausing.paused


class Unpausable(Pausable):
    def running(self, urgency: int, counts: bool) -> None:  # type: ignore[override]
        return None


@pytest.mark.parametrize("model", ["elsewhere", MODEL])
async def test_a_call_gives_way_however_many_others_do_not(
    endpoints: Endpoints, model: str
) -> None:
    """As these run at other engines, or cannot be paused."""
    for name, role in (("p2", Role.PREFILL), ("d2", Role.DECODE)):
        endpoints.put(
            Instance(name, f"http://127.0.0.1/{name}", role, "vllm-nixl", model="elsewhere")
        )
        endpoints.mark_up(name, ["elsewhere"])
    gate = Gate(Limits(decode_concurrency=1000, give_way=1), endpoints)
    gate.giving_way = GivingWayGate(gate)
    with ExitStack() as stack:
        turns = [
            stack.enter_context(gate.turn(name, LinePlace(7)))
            for name in (*(model for _ in range(600)), MODEL)
        ]
        for turn in turns:
            assert isinstance(turn, LowTurn)
            turn.pausing = Unpausable(turn.again)
        assert isinstance(turns[-1], LowTurn)
        turns[-1].pausing = pausing = Pausable(turns[-1].again)
        gate.put(Limits(decode_concurrency=601 if model == MODEL else 1, give_way=1))
        async with callers(gate) as come:
            come(urgency=0)
            await until(lambda: pausing.paused, "the one that can to give way")


async def test_who_gave_way_waits_for_no_line_of_other_engines(endpoints: Endpoints) -> None:
    """And, when no engine serves its model any more, only for a while."""
    for name, role in (("p2", Role.PREFILL), ("d2", Role.DECODE)):
        endpoints.put(Instance(name, f"http://127.0.0.1/{name}", role, "vllm-nixl", model="b"))
        endpoints.mark_up(name, ["b"])
    gate = Gate(Limits(decode_concurrency=1, give_way=1, wait_seconds=1e9), endpoints)
    gate.giving_way = GivingWayGate(gate)
    async with callers(gate) as come:
        come(model="b"), come(model="b")
        await settled()
        with gate.turn(MODEL, LinePlace(7)) as turn:
            assert isinstance(turn, LowTurn)
            back = asyncio.create_task(turn.again())
            await settled()
            gate.look()
            await asyncio.wait_for(back, PATIENCE_SECONDS)

            endpoints.remove("p")
            endpoints.remove("d")
            back = asyncio.create_task(turn.again())
            await settled()
            gate.look()
            await settled()
            assert not back.done()
            turn.since -= BACK_SECONDS
            gate.look()
            await asyncio.wait_for(back, PATIENCE_SECONDS)


def remove(endpoints: Endpoints, name: str) -> None:
    endpoints.remove(name)


def restart(endpoints: Endpoints, name: str) -> None:
    endpoints.mark_down(name)


def drain(endpoints: Endpoints, name: str) -> None:
    endpoints.drain([name])


def stick(endpoints: Endpoints, name: str) -> None:
    endpoints.mark_stuck(name)


@pytest.mark.parametrize("goes", [remove, drain, stick])
async def test_calls_that_run_on_where_no_more_are_sent_take_no_places_of_others(
    endpoints: Endpoints, goes: Callable[[Endpoints, str], None]
) -> None:
    """Answers take minutes: for so long a rolling update would begin no call at its new engines."""
    endpoints.put(Instance("e", "http://127.0.0.1/e", Role.DECODE, "vllm-nixl", model=MODEL))
    endpoints.mark_up("e", [MODEL])
    old = endpoints.get("e")
    assert old is not None
    gate = Gate(Limits(decode_concurrency=2), endpoints)
    async with callers(gate) as come:
        for _ in range(3):
            assert await begins(come())
        with Reservation(old, 10, reads=False), Reservation(old, 10, reads=False):
            goes(endpoints, "e")

            assert await begins(come())
            assert not await begins(come())


@pytest.mark.parametrize("goes", [remove, restart, drain])
@pytest.mark.parametrize("name", ["p", "d"])
async def test_who_gave_way_waits_while_its_engine_is_gone(
    endpoints: Endpoints, goes: Callable[[Endpoints, str], None], name: str
) -> None:
    """Sent on, a stream that has begun would break, as no engine can have it."""
    gate = Gate(Limits(decode_concurrency=1, give_way=1), endpoints)
    gate.giving_way = GivingWayGate(gate)
    async with callers(gate) as come:
        with gate.turn(MODEL, LinePlace(7)) as turn:
            assert isinstance(turn, LowTurn)
            urgent = come()
            back = asyncio.create_task(turn.again())
            assert await begins(urgent)
            goes(endpoints, name)
            await urgent.leave()
            await settled()
            gate.look()
            await settled()
            # Without the one there is no pair; where none is known of the model, no name either.
            assert not back.done()

            endpoints.drain([])
            role = Role.PREFILL if name == "p" else Role.DECODE
            endpoints.put(
                Instance(name, f"http://127.0.0.1/{name}", role, "vllm-nixl", model=MODEL)
            )
            endpoints.mark_up(name, [MODEL])
            gate.look()
            await asyncio.wait_for(back, PATIENCE_SECONDS)


async def test_a_plain_engine_that_has_read_a_prompt_has_room_while_it_answers() -> None:
    """No call ends, and nothing else tells the gate before its next tick."""
    plain = fleet(Instance("w", "http://127.0.0.1/w", Role.PLAIN, "plain"), model=MODEL)
    gate, engines = Gate(Limits(prefill_seconds=1.0), plain), scheduler(plain)
    engines.freed = gate.look_soon
    async with callers(gate) as come:
        with engines.reserve(Role.PLAIN, prompt(30_000, model=MODEL)) as answering:
            waiting = come()
            assert not await begins(waiting)

            answering.has_read(3.0)

            assert await begins(waiting)


async def test_an_engine_has_its_share_of_what_waits_before_it_has_read_the_first(
    endpoints: Endpoints,
) -> None:
    """It would stand idle between two prompts until the next one has come."""
    gate, engines = Gate(Limits(prefill_seconds=1.0), endpoints), scheduler(endpoints)
    begun = 0

    async def ask() -> None:
        nonlocal begun
        with gate.turn(MODEL, LinePlace(tokens=3000)) as turn:
            if turn.waits:
                await turn.come()
            with engines.reserve(Role.PREFILL, prompt(3000, model=MODEL)):
                begun += 1
                await asyncio.Event().wait()

    reading = engines.reserve(Role.PREFILL, prompt(30_000, model=MODEL))
    calls = [asyncio.create_task(ask()) for _ in range(10)]
    await settled()
    assert begun == 0

    reading.end()
    gate.look()
    for _ in range(10):
        await settled()

    # Of 0.3 s each.
    assert begun == 4
    for call in calls:
        call.cancel()
    await asyncio.wait(calls)


async def test_a_call_that_is_not_split_does_not_give_its_place_away_while_it_begins() -> None:
    """For a moment it holds no engine: it has let go of the one that it was to be split by."""
    crossing = Crossing(
        Scripted(),
        *(Instance(n, f"http://{n}", Role.BOTH, "vllm-nixl", model=MODEL) for n in ("x", "y")),
        rule=Never(),
    )
    endpoints = crossing.endpoints
    for name in ("x", "y"):
        endpoints.mark_up(name, [MODEL])
    limits = AdmissionSection(prefill_seconds=1.0)
    gate = gate_of(Settings(admission=limits), endpoints, crossing.scheduler, None)
    assert gate is not None
    most: Counter[str] = Counter()
    running: list[asyncio.Event] = []

    async def ask() -> None:
        call = prompt(20_000, model=MODEL, stream=True)
        with gate.turn(MODEL, LinePlace(tokens=20_000)) as turn:
            if turn.waits:
                await turn.come()
            route = crossing.execution.router.route(call, FRESH)
            assert route.prefill is None
            for one in endpoints:
                most[one.instance.id] = max(most[one.instance.id], one.calls)
            end = asyncio.Event()
            running.append(end)
            await end.wait()
            assert route.answering is not None
            route.answering.end()

    async with asyncio.TaskGroup() as calls:
        for _ in range(6):
            calls.create_task(ask())
        for _ in range(6):
            await settled()
            running.pop(0).set()
    assert most == {"x": 1, "y": 1}
