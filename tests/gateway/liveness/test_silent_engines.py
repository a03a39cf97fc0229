"""Engines that do nothing any more, and engines that are only slow, with legs that wait for them.

Each engine is a script on a real socket; the bound is three seconds instead of ten.
"""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from pdgate.gateway.config.sections import HealthSection
from pdgate.protocols.instance import Role
from tests.support.fleet import (
    ANSWER,
    PATIENCE_SECONDS,
    STREAM_HEAD,
    Engine,
    Gateway,
    Held,
    as_json,
    gateway_of,
    streams,
)
from tests.support.own_time import own_seconds
from tests.support.raw_server import Peer, chunk, reply

SECONDS = 3.0
HEALTH = HealthSection(
    interval_seconds=0.2, timeout_seconds=1.0, frozen_seconds=SECONDS, max_failures=0
)
DONE = b'data: {"choices": [{"index": 0, "delta": {"content": "x"}, "finish_reason": "stop"}]}\n\n'
FIRST = b'data: {"choices": [{"index": 0, "delta": {"content": "x"}}]}\n\n'
END = b"data: [DONE]\n\n"

WELL = streams(DONE, END)


class Watched(Engine):
    """An engine of which the test says how it answers looks.

    Attributes:
        looks: Questions for /health so far.
        looked: Set at each of them.
        answers_after: Seconds; None to answer no look at all.
        steps: What its /metrics counts; None for an engine without.
        running: Calls, by its own count.
    """

    def __init__(self, role: Role, script: Any = None) -> None:
        super().__init__(role, script)
        self.looks = 0
        self.looked = asyncio.Event()
        self.answers_after: float | None = 0.0
        self.steps: Callable[[], int] | None = None
        self.running = 1

    async def serve(self, peer: Peer) -> None:
        line = peer.request.line
        if line.startswith(b"GET /health"):
            self.looks += 1
            self.looked.set()
        if line.startswith(b"GET "):
            if self.answers_after is None:
                await peer.gone()
                return
            if line.startswith(b"GET /health"):
                await asyncio.sleep(self.answers_after)
        if line.startswith(b"GET /metrics") and self.steps is not None:
            await peer.send(reply(self._page()))
            return
        await super().serve(peer)

    def _page(self) -> bytes:
        assert self.steps is not None
        return (
            b"vllm:num_requests_running %d\nvllm:num_requests_waiting 0\n"
            b"vllm:inter_token_latency_seconds_count %d\n"
            b"vllm:time_to_first_token_seconds_count 7\n" % (self.running, self.steps())
        )

    async def looked_at(self, times: int) -> None:
        """So many times more."""
        wanted = self.looks + times
        async with asyncio.timeout(PATIENCE_SECONDS):
            while self.looks < wanted:
                self.looked.clear()
                await self.looked.wait()


async def given_up(gateway: Gateway, why: str) -> float:
    found = await gateway.metrics()
    return sum(
        value
        for key, value in found.items()
        if key[0] == "pdgate_legs_given_up_total" and key[-1] == why
    )


async def told(gateway: Gateway) -> tuple[float, list[str]]:
    """How long it took until the end of a stream, and its last events."""
    began = own_seconds()
    lines = (await gateway.chat(stream=True)).text.splitlines()
    return own_seconds() - began, [line for line in lines if line][-2:]


def is_error(lines: list[str]) -> bool:
    return any("error" in json.loads(one[6:]) for one in lines if one != "data: [DONE]")


async def test_a_stream_of_an_engine_whose_port_refuses_ends_with_an_error() -> None:
    """vLLM at SIGTERM: its core is dead, its connections are open and silent, its port is closed."""
    decode = Watched(Role.PLAIN, held := Held())
    async with gateway_of(decode, health=HEALTH) as gateway:
        asking = asyncio.create_task(told(gateway))
        call = await held.next()
        await call.peer.send(STREAM_HEAD, chunk(FIRST))
        decode.refuse()
        seconds, last = await asking
        assert is_error(last)
        assert seconds < SECONDS + 5
        assert await given_up(gateway, "gone") == 1


@pytest.mark.parametrize("stream", [True, False])
async def test_before_the_first_byte_another_engine_is_asked(stream: bool) -> None:
    gone, well = Watched(Role.PLAIN, held := Held()), Engine(Role.PLAIN)
    well.script = WELL if stream else well.script
    async with gateway_of(gone, well, health=HEALTH, plain_policy="round_robin") as gateway:
        async with asyncio.TaskGroup() as group:
            asking = [group.create_task(gateway.chat(stream=stream)) for _ in range(4)]
            waiting = [await held.next(), await held.next()]
            gone.refuse()
        assert [task.result().status_code for task in asking] == [200] * 4
        for call in waiting:
            await call.left
        assert await given_up(gateway, "gone") == 2


async def test_an_engine_that_does_not_answer_any_more_is_left() -> None:
    frozen, well = Watched(Role.PLAIN, held := Held()), Engine(Role.PLAIN, WELL)
    async with gateway_of(frozen, well, health=HEALTH, plain_policy="round_robin") as gateway:
        async with asyncio.TaskGroup() as group:
            asking = [group.create_task(gateway.chat(stream=True)) for _ in range(2)]
            await held.next()
            frozen.answers_after = None
        assert [task.result().status_code for task in asking] == [200] * 2
        assert await given_up(gateway, "frozen") == 1


async def test_an_engine_whose_core_stands_still_is_left_and_gets_one_call_on_trial() -> None:
    """Its API server says that all is well."""
    stuck, well = Watched(Role.PLAIN, streams(DONE, END)), Engine(Role.PLAIN, WELL)
    # Where this process stands still for a second, neither engine is up, and the stuck one is as good as the other.
    health = HEALTH.model_copy(update={"timeout_seconds": 10.0})
    async with gateway_of(stuck, well, health=health, plain_policy="round_robin") as gateway:
        for _ in range(4):
            assert (await gateway.chat(stream=True)).status_code == 200
        assert stuck.calls
        stuck.steps = lambda: 40
        stuck.script = held = Held()
        async with asyncio.TaskGroup() as group:
            asking = [group.create_task(gateway.chat(stream=True)) for _ in range(2)]
            await held.next()
        assert [task.result().status_code for task in asking] == [200] * 2
        assert await given_up(gateway, "stuck") == 1

        before = len(stuck.calls)
        for _ in range(8):
            assert (await gateway.chat(stream=True)).status_code == 200
        assert len(stuck.calls) == before
        # Something moves there.
        stuck.steps = lambda: 41
        stuck.script = WELL
        async with asyncio.timeout(PATIENCE_SECONDS):
            while len(stuck.calls) == before:
                assert (await gateway.chat(stream=True)).status_code == 200
                # Whoever asks in a tight loop leaves no time for what it waits for.
                await asyncio.sleep(0.05)


async def test_an_engine_that_moves_is_slow_and_keeps_its_calls() -> None:
    slow = Watched(Role.PLAIN, held := Held())
    slow.steps = lambda: slow.looks
    async with gateway_of(slow, health=HEALTH) as gateway, asyncio.TaskGroup() as group:
        asking = group.create_task(gateway.chat())
        call = await held.next()
        # Of which the prober makes five in a second.
        await slow.looked_at(40)
        assert not call.left.done()
        await call.peer.send(as_json(ANSWER))
        assert (await asking).status_code == 200
        assert sum([await given_up(gateway, why) for why in ("gone", "frozen", "stuck")]) == 0


async def test_an_engine_that_is_slow_to_say_that_it_is_well_keeps_its_calls() -> None:
    """Four fifths of the bound, as 8 s are of 10; longer than a look may take."""
    slow = Watched(Role.PLAIN, held := Held())
    async with gateway_of(slow, health=HEALTH) as gateway, asyncio.TaskGroup() as group:
        asking = group.create_task(gateway.chat())
        call = await held.next()
        slow.answers_after = 0.8 * SECONDS
        # Each is given up after a second: all together take three times the bound.
        await slow.looked_at(8)
        assert not call.left.done()
        await call.peer.send(as_json(ANSWER))
        assert (await asking).status_code == 200


async def test_a_stream_beside_it_shows_that_a_silent_leg_is_only_slow() -> None:
    slow = Watched(Role.PLAIN, held := Held())
    async with gateway_of(slow, health=HEALTH) as gateway, asyncio.TaskGroup() as group:
        asking = group.create_task(gateway.chat())
        silent = await held.next()
        beside = group.create_task(gateway.chat(stream=True))
        live = await held.next()
        slow.answers_after = None
        await live.peer.send(STREAM_HEAD)
        for _ in range(45):
            await live.peer.send(chunk(FIRST))
            await asyncio.sleep(0.15)
        assert not silent.left.done()
        await silent.peer.send(as_json(ANSWER))
        await live.peer.send(chunk(DONE), chunk(END), b"0\r\n\r\n")
        assert (await asking).status_code == (await beside).status_code == 200


async def test_a_decode_engine_is_freed_when_the_prefill_engine_that_it_asks_is_gone() -> None:
    """vllm-kvt: only decode is asked, so prefill has no leg of its own."""
    gone, well = Watched(Role.PREFILL), Watched(Role.PREFILL)
    gone.entry = {"protocol": "vllm-kvt", "kv": "127.0.0.1:7001"}
    well.entry = {"protocol": "vllm-kvt", "kv": "127.0.0.1:7002"}
    decode = Engine(Role.DECODE, held := Held())
    decode.entry = {"protocol": "vllm-kvt"}
    async with gateway_of(gone, well, decode, health=HEALTH) as gateway:
        async with asyncio.TaskGroup() as group:
            asking = group.create_task(gateway.chat(stream=True))
            first = await held.next()
            (gone if b"7001" in first.peer.request.body else well).refuse()
            decode.script = WELL
            await first.left
        assert asking.result().status_code == 200
        (before, after) = (call.body for call in decode.calls)
        assert (b"7001" in before) is not (b"7001" in after)
        assert (await gateway.metrics())["pdgate_instance_state", "decode-0", "decode", "up"] == 1


async def test_a_call_that_waited_for_a_frozen_prefill_engine_does_not_wait_for_another() -> None:
    """Both are known to do nothing by then, and decode can read the prompt."""
    frozen = [Watched(Role.PREFILL, Held()) for _ in range(2)]
    decode = Engine(Role.DECODE, WELL)
    async with gateway_of(*frozen, decode, health=HEALTH, prefill_policy="round_robin") as gateway:
        for one in frozen:
            one.answers_after = None
        async with asyncio.TaskGroup() as group:
            asking = [group.create_task(gateway.chat(stream=True)) for _ in range(2)]
        assert [task.result().status_code for task in asking] == [200] * 2
        assert [len(one.calls) for one in frozen] == [1, 1]


def delegates(*, idle: bool) -> tuple[Watched, Watched, Watched]:
    """Two prefill engines and a decode engine of vllm-kvt, which asks prefill by itself."""
    first, second = Watched(Role.PREFILL), Watched(Role.PREFILL)
    decode = Watched(Role.DECODE)
    for number, one in enumerate((first, second)):
        one.entry = {"protocol": "vllm-kvt", "kv": f"127.0.0.1:700{number + 1}"}
    decode.entry = {"protocol": "vllm-kvt"}
    for one in (first, second, decode):
        one.steps = lambda: 40
        one.running = 0 if idle else 1
    return first, second, decode


async def test_a_prefill_engine_that_froze_while_it_was_idle_is_found_by_its_first_call() -> None:
    """It says that it is well and has nothing to do, and so it says while decode waits for it."""
    first, second, decode = delegates(idle=True)
    held = Held()
    decode.script, first.script, second.script = held, Held(), Held()
    # Decode has said to its own core what it waits for.
    decode.steps = lambda: decode.looks
    async with gateway_of(first, second, decode, health=HEALTH) as gateway:
        async with asyncio.TaskGroup() as group:
            asking = group.create_task(gateway.chat(stream=True))
            call = await held.next()
            decode.script = WELL
            await call.left
        assert asking.result().status_code == 200
        assert await given_up(gateway, "stuck") == 1
        frozen = first if b"7001" in call.peer.request.body else second
        # It was given something to read, once.
        assert [one["max_tokens"] for one in frozen.bodies] == [1]
        assert len(decode.calls) == 2


async def test_a_prefill_engine_that_was_not_asked_yet_is_not_taken_for_a_frozen_one() -> None:
    """Its decode engine has other calls first; what it is given to read, it reads."""
    first, second, decode = delegates(idle=True)
    read = asyncio.Semaphore(0)

    async def reads(peer: Peer) -> None:
        read.release()
        await peer.send(as_json(ANSWER))

    held = Held()
    decode.script, first.script, second.script = held, reads, reads
    decode.steps = lambda: decode.looks
    async with gateway_of(first, second, decode, health=HEALTH) as gateway:
        async with asyncio.TaskGroup() as group:
            asking = group.create_task(gateway.chat())
            call = await held.next()
            async with asyncio.timeout(PATIENCE_SECONDS):
                # Each is a sign of life, after which it has to be silent for a second again.
                for _ in range(4):
                    await read.acquire()
            assert not call.left.done()
            await call.peer.send(as_json(ANSWER))
        assert asking.result().status_code == 200
        assert sum([await given_up(gateway, why) for why in ("gone", "frozen", "stuck")]) == 0


async def test_a_decode_engine_that_froze_while_it_was_idle_is_found_by_its_first_call() -> None:
    """It waits for nobody's KV: what waits there, it does not even count."""
    frozen, well, prefill = (
        Watched(Role.DECODE, held := Held()),
        Watched(Role.DECODE),
        Watched(Role.PREFILL),
    )
    for one in (frozen, well, prefill):
        one.entry = {"protocol": "vllm-kvt"}
        one.running = 0
    prefill.entry["kv"] = "127.0.0.1:7001"
    frozen.steps = lambda: 40
    well.script = WELL
    async with gateway_of(
        frozen, well, prefill, health=HEALTH, decode_policy="round_robin"
    ) as gateway:
        async with asyncio.TaskGroup() as group:
            asking = [group.create_task(gateway.chat(stream=True)) for _ in range(2)]
            call = await held.next()
            await call.left
        assert [task.result().status_code for task in asking] == [200] * 2
        assert await given_up(gateway, "stuck") == 1


async def test_one_of_several_cores_behind_one_url_stands_still() -> None:
    """Each rank is an instance of its own, and what it counts stands by its number."""
    first = Watched(Role.PLAIN)
    held = Held()

    async def by_rank(peer: Peer) -> None:
        if peer.request.header(b"x-data-parallel-rank") == b"0":
            await held(peer)
        else:
            await WELL(peer)

    class Second(Engine):
        """The same server: of it only the entry counts."""

        @property
        def entry(self) -> dict[str, Any]:
            return {"url": first.url, "dp_rank": 1}

        @entry.setter
        def entry(self, _: dict[str, Any]) -> None: ...

    first.entry = {"dp_rank": 0}
    first.script = by_rank
    moved = iter(range(1, 10_000))

    def page() -> bytes:
        return b"".join(
            b'vllm:num_requests_running{engine="%d"} %d\n'
            b'vllm:num_requests_waiting{engine="%d"} 0\n'
            b'vllm:inter_token_latency_seconds_count{engine="%d"} %d\n'
            b'vllm:time_to_first_token_seconds_count{engine="%d"} 7\n'
            % (rank, rank, rank, rank, steps, rank)
            for rank, steps in ((0, 40), (1, next(moved)))
        )

    first.steps = lambda: 0
    first._page = page  # type: ignore[method-assign]
    async with gateway_of(
        first, Second(Role.PLAIN), health=HEALTH, plain_policy="round_robin"
    ) as gateway:
        async with asyncio.TaskGroup() as group:
            asking = [group.create_task(gateway.chat(stream=True)) for _ in range(2)]
            await (await held.next()).left
        assert [task.result().status_code for task in asking] == [200] * 2
        assert await given_up(gateway, "stuck") == 1
