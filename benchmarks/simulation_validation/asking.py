"""Calls at their times, and what callers saw."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter

import httpx2

from benchmarks.disaggregation.load import is_token
from benchmarks.simulation_validation.piece import Call
from pdgate.protocols.priority import ORDINARY


@dataclass(frozen=True, slots=True)
class Seen:
    """
    Attributes:
        ttft: Seconds from asking to the first token.
        tpot: Seconds between two tokens, on average.
        urgency: As the call said.
    """

    ttft: float
    tpot: float
    urgency: int = ORDINARY


async def replay(url: str, calls: Sequence[Call]) -> list[Seen]:
    """All of them, each at its time, in their order. Raises what an answer that is not whole raises."""
    seen: list[Seen | None] = [None] * len(calls)
    async with (
        httpx2.AsyncClient(base_url=url, timeout=600, trust_env=False) as http,
        asyncio.TaskGroup() as clients,
    ):
        began = perf_counter()

        async def one(number: int, call: Call) -> None:
            urgency = call.ask.urgency
            seen[number] = await ask(http, call.prompt, call.answer_tokens, urgency)

        for number, call in enumerate(calls):
            await asyncio.sleep(max(0.0, began + call.ask.at - perf_counter()))
            clients.create_task(one(number, call))
    return [what for what in seen if what is not None]


async def ask(
    http: httpx2.AsyncClient, prompt: str, answer_tokens: int, urgency: int = ORDINARY
) -> Seen:
    body = {"prompt": prompt, "max_tokens": answer_tokens, "stream": True, "ignore_eos": True}
    times = [perf_counter()]
    headers = {} if urgency == ORDINARY else {"x-priority": str(urgency)}
    async with http.stream("POST", "/v1/completions", json=body, headers=headers) as answer:
        answer.raise_for_status()
        times += [perf_counter() async for line in answer.aiter_lines() if is_token(line)]
    if len(times) < 3:
        raise RuntimeError(f"{len(times) - 1} events of {answer_tokens} tokens")
    # Several tokens may come in one event, so not events but tokens are counted.
    return Seen(times[1] - times[0], (times[-1] - times[1]) / (answer_tokens - 1), urgency)
