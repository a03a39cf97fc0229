"""Driver of a replay: sends each call at its time, and says how late it was itself.

Requests are made before their time comes, so that at it nothing is left but to write them.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AsyncExitStack, nullcontext
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Final

import msgspec

from pdgate.lab.replay.connection import AnswerLost, ReplayClient, ReplayServer
from pdgate.lab.replay.outcome import NEVER_SENT, ReplayOutcome
from pdgate.lab.replay.prompts import Prompts
from pdgate.lab.replay.reading import AnswerReading
from pdgate.lab.simulator.trace import TraceCall
from pdgate.protocols.call import COMPLETIONS

STOPPED: Final = "replay was stopped"
AHEAD_SECONDS: Final = 0.05
"""Before its time at which a call's request is made; more than making it takes."""


@dataclass(frozen=True, slots=True)
class Drive:
    """
    Attributes:
        answer_scale: Tokens asked for, for each of the trace.
        limit: Calls at a time; others wait, and are due when there is room. None for no limit.
    """

    server: ReplayServer
    model: str
    prompts: Prompts
    answer_scale: float = 1.0
    limit: int | None = None
    timeout_seconds: float = 600.0
    api_key: str = ""

    def answer_tokens(self, ask: TraceCall) -> int:
        return max(1, round(ask.answer_tokens * self.answer_scale))

    def body(self, number: int, ask: TraceCall) -> bytes:
        return msgspec.json.encode(
            {
                "model": self.model,
                "prompt": self.prompts.of(number, ask),
                "max_tokens": self.answer_tokens(ask),
                "temperature": 0,
                "ignore_eos": True,
                "stream": True,
                "stream_options": {"include_usage": True},
            }
        )


async def drive(
    plan: Drive,
    asks: Sequence[TraceCall],
    *,
    progress: Callable[[int], None] = lambda over: None,
    stop: asyncio.Event | None = None,
) -> list[ReplayOutcome]:
    """What became of each; after a stop, of each that was tried. `progress`: how many are over."""
    outcomes = [ReplayOutcome(ask, plan.answer_tokens(ask)) for ask in asks]
    headers = {"authorization": f"Bearer {plan.api_key}"} if plan.api_key else {}
    client = ReplayClient(plan.server, headers, plan.timeout_seconds)
    room = nullcontext() if plan.limit is None else asyncio.Semaphore(plan.limit)
    over = 0
    began = perf_counter() + AHEAD_SECONDS

    def clock() -> float:
        return perf_counter() - began

    async def one(number: int, outcome: ReplayOutcome) -> None:
        nonlocal over
        reading = AnswerReading(outcome, clock)
        try:
            request = client.request(COMPLETIONS, plan.body(number, outcome.ask))
            async with room:
                outcome.due = max(outcome.ask.at, clock() if plan.limit else 0.0)
                connection = await client.connection()
                await _until(began + outcome.ask.at)
                outcome.sent = clock()
                await client.exchange(connection, request, reading)
            reading.over()
        except AnswerLost as lost:
            reading.over(str(lost))
        except asyncio.CancelledError:
            if outcome.sent:
                reading.over(STOPPED)
            raise
        over += 1
        progress(over)

    async def all_of_them() -> None:
        async with asyncio.TaskGroup() as calls:
            for number, outcome in enumerate(outcomes):
                await _until(began + outcome.ask.at - AHEAD_SECONDS)
                calls.create_task(one(number, outcome))

    async with AsyncExitStack() as closing:
        closing.callback(client.close)
        await _unless(stop, all_of_them())
    return [one for one in outcomes if one.why != NEVER_SENT]


async def _until(moment: float) -> None:
    left = moment - perf_counter()
    if left > 0:
        await asyncio.sleep(left)


async def _unless(stop: asyncio.Event | None, work: Coroutine[Any, Any, None]) -> None:
    """Until the work is done, or is to stop."""
    working = asyncio.ensure_future(work)
    if stop is None:
        await working
        return
    stopping = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait((working, stopping), return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            working.result()
    finally:
        working.cancel()
        stopping.cancel()
        await asyncio.wait((working, stopping))
