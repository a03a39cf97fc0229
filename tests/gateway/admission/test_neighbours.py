"""Two workers' gates in one process: limits hold for both together, and both lines move."""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path

import pytest

from pdgate.gateway.admission.giving_way import LowTurn
from pdgate.gateway.config import Settings
from pdgate.gateway.config.sections import AdmissionSection, ListenSection
from pdgate.gateway.policies import Policies
from pdgate.gateway.sync.workers import SharedLoad, lines
from pdgate.gateway.wiring.parts import gate_of, scheduler_of
from pdgate.protocols.instance import Instance, Role
from pdgate.scheduling.admission import LinePlace
from pdgate.scheduling.endpoints import Endpoints
from pdgate.scheduling.reservation import Reservation
from tests.support import waiting

MODEL, ADAPTER = "tiny", "adapter"
PATIENCE_SECONDS = waiting.PATIENCE_SECONDS


class Worker:
    def __init__(self, folder: Path, limits: AdmissionSection, models: Sequence[str]) -> None:
        self.endpoints = Endpoints()
        for name, role in (("p", Role.PREFILL), ("d", Role.DECODE)):
            self.add(name, role, *models)
        self.load = SharedLoad(folder, self.endpoints)
        settings = Settings(admission=limits, listen=ListenSection(workers=2))
        scheduler = scheduler_of(settings, self.endpoints, Policies(self.load.policy))
        gate = gate_of(settings, self.endpoints, scheduler, self.load)
        assert gate is not None
        self.gate = gate

    def add(self, name: str, role: Role, *models: str) -> None:
        """An engine."""
        self.endpoints.put(
            Instance(name, f"http://127.0.0.1/{name}", role, "vllm-nixl", model=models[0])
        )
        self.endpoints.mark_up(name, models)

    def begin(self, model: str = MODEL, reads: int = 0) -> "asyncio.Task[AsyncExitStack]":
        """A call, which ends when the stack is closed that it has when it has begun; `reads`: tokens, of prefill."""
        return asyncio.create_task(self._begin(model, reads))

    async def _begin(self, model: str, reads: int) -> AsyncExitStack:
        async with asyncio.timeout(PATIENCE_SECONDS), AsyncExitStack() as stack:
            turn = stack.enter_context(self.gate.turn(model, LinePlace()))
            if turn.waits:
                await turn.come()
            if reads:
                stack.enter_context(self.reserve(reads))
            return stack.pop_all()

    def reserve(self, tokens: int = 10, at: str = "p") -> Reservation:
        endpoint = self.endpoints.get(at)
        assert endpoint is not None
        return Reservation(endpoint, tokens, reads=at == "p")


@contextmanager
def two(folder: Path, limits: AdmissionSection, *models: str) -> Iterator[tuple[Worker, Worker]]:
    """`models`: those of the engines, if there are others besides MODEL."""
    served = MODEL, *models
    workers = Worker(folder, limits, served), Worker(folder, limits, served)
    try:
        for worker in workers:
            worker.load.look()
        yield workers
    finally:
        for worker in workers:
            worker.load.close()


async def test_decode_engines_have_no_more_than_the_limit_through_both(tmp_path: Path) -> None:
    with two(tmp_path, AdmissionSection(decode_concurrency=2)) as (one, other):
        calls = [await one.begin(), await other.begin()]
        waits = other.begin()
        done, _ = await asyncio.wait([waits], timeout=0.05)
        assert not done

        await calls[0].aclose()
        calls.append(await waits)
        for call in calls[1:]:
            await call.aclose()


async def test_one_worker_may_have_all_while_the_other_needs_none(tmp_path: Path) -> None:
    with two(tmp_path, AdmissionSection(decode_concurrency=4)) as (one, _):
        for call in [await one.begin() for _ in range(4)]:
            await call.aclose()


async def test_a_prefill_engine_has_no_more_than_the_limit_through_both(tmp_path: Path) -> None:
    with two(tmp_path, AdmissionSection(prefill_concurrency=1)) as (one, other):
        with one.reserve():
            waits = other.begin()
            done, _ = await asyncio.wait([waits], timeout=0.05)
            assert not done
        await (await waits).aclose()


async def test_the_limit_holds_for_models_of_which_a_worker_has_never_had_a_call(
    tmp_path: Path,
) -> None:
    with two(tmp_path, AdmissionSection(decode_concurrency=1), ADAPTER) as (one, other):
        running = await one.begin()
        waits = other.begin(ADAPTER)
        done, _ = await asyncio.wait([waits], timeout=0.05)
        assert not done

        await running.aclose()
        await (await waits).aclose()


async def test_a_worker_whose_engines_others_have_by_another_set_still_gets_a_call_in(
    tmp_path: Path,
) -> None:
    """Their line is not seen here, and takes what is free before this one looks."""
    with two(tmp_path, AdmissionSection(decode_concurrency=1), ADAPTER) as (one, other):
        one.add("d2", Role.DECODE, MODEL)
        for worker in (one, other):
            worker.load.look()
        running = [await one.begin(), await one.begin()]
        with one.reserve(at="d"), one.reserve(at="d2"):
            first = await other.begin(ADAPTER)
            with other.reserve(at="d"):
                waits = other.begin(ADAPTER)
                done, _ = await asyncio.wait([waits], timeout=0.05)
                assert not done
            await first.aclose()
            await (await waits).aclose()
        for call in running:
            await call.aclose()


@pytest.mark.parametrize("model", [MODEL, ADAPTER])
async def test_a_single_place_goes_from_line_to_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: str
) -> None:
    """The worker whose call ends looks first, and would take it again each time."""
    # A machine that stalls makes no worker one that hangs.
    monkeypatch.setattr(lines, "HANGS_NS", int(PATIENCE_SECONDS * 1e9))
    with two(tmp_path, AdmissionSection(decode_concurrency=1), ADAPTER) as (one, other):
        running = await one.begin()
        waiting = {one.begin(): one, one.begin(): one}
        waiting |= {other.begin(model): other, other.begin(model): other}
        served = []
        while waiting:
            await asyncio.sleep(0)
            await running.aclose()
            (began,), _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            served.append(waiting.pop(began))
            running = began.result()
        await running.aclose()

        assert served in ([one, other, one, other], [other, one, other, one])


async def test_who_gave_way_has_turns_with_the_lines_of_other_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines, "HANGS_NS", int(PATIENCE_SECONDS * 1e9))
    with two(tmp_path, AdmissionSection(decode_concurrency=1, give_way=1)) as (one, other):
        with one.gate.turn(MODEL, LinePlace(urgency=7)) as turn:
            assert isinstance(turn, LowTurn)
            waiting = [other.begin() for _ in range(3)]
            await asyncio.sleep(0)
            back = asyncio.create_task(turn.again())
            first = await waiting[0]
            assert not back.done()
            # Now it is longest ago for the one that gave way.
            await first.aclose()
            await asyncio.wait_for(back, PATIENCE_SECONDS)
            assert not waiting[1].done()
        for call in waiting[1:]:
            await (await call).aclose()


@pytest.mark.parametrize(
    "limits", [AdmissionSection(decode_concurrency=1), AdmissionSection(prefill_concurrency=1)]
)
async def test_a_worker_that_dies_leaves_its_places(
    tmp_path: Path, limits: AdmissionSection
) -> None:
    with two(tmp_path, limits) as (one, other):
        async with await one.begin():
            with one.reserve():
                waits = other.begin()
                await asyncio.sleep(0)
                one.load.close()
                other.load.look()
                await (await waits).aclose()


async def test_a_worker_that_hangs_loses_its_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines, "HANGS_NS", 50_000_000)
    with two(tmp_path, AdmissionSection(decode_concurrency=1)) as (one, other):
        running = await other.begin()
        hangs = one.begin()
        await asyncio.sleep(0)
        assert one.gate._timer is not None
        one.gate._timer.cancel()
        waits = other.begin()
        await asyncio.sleep(0)

        await running.aclose()
        assert not waits.done()
        await (await waits).aclose()
        assert not hangs.done()
        hangs.cancel()
        await asyncio.wait([hangs])


async def test_a_worker_that_hangs_when_it_has_let_a_call_in_holds_up_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines, "HANGS_NS", 50_000_000)
    with two(tmp_path, AdmissionSection(prefill_seconds=1.0)) as (one, other):
        reading = one.reserve(50_000)
        with one.gate.turn(MODEL, LinePlace()) as hangs:
            assert hangs.waits
            reading.end()
            one.gate.look()
            assert not one.gate.line_length
            waits = other.begin()
            await asyncio.sleep(0)
            assert not waits.done()
            await (await waits).aclose()


async def test_what_prefill_has_to_read_for_one_keeps_the_calls_of_the_other_waiting(
    tmp_path: Path,
) -> None:
    with two(tmp_path, AdmissionSection(prefill_seconds=1.0)) as (one, other):
        reading = one.reserve(50_000)
        waits = other.begin()
        await waiting.until(lambda: other.gate.line_length == 1, "a call that waits")
        assert not waits.done()

        reading.end()

        await (await waits).aclose()


async def test_an_engine_goes_from_line_to_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker whose prompt is read looks first, and would take the engine again each time."""
    monkeypatch.setattr(lines, "HANGS_NS", int(PATIENCE_SECONDS * 1e9))
    with two(tmp_path, AdmissionSection(prefill_seconds=1.0)) as (one, other):
        running, waits = await one.begin(reads=50_000), {}
        for worker in (one, one, other, other):
            waits[worker.begin(reads=50_000)] = worker
        await waiting.until(lambda: one.gate.line_length + other.gate.line_length == 4, "lines")
        served = []
        while waits:
            await running.aclose()
            (began,), _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            served.append(waits.pop(began))
            running = began.result()
        await running.aclose()

        assert served in ([one, other, one, other], [other, one, other, one])
