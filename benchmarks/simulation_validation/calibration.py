"""How fast these engines are, from calls that have them to themselves.

read alone    seconds = overhead + tokens * prompt token      a line through a few lengths, at prefill
whole call    TTFT - read alone - a step                      the way between two engines, and the gateway's
TPOT alone, and of several at once                            a step, and what each call adds to it
"""

import asyncio
from collections.abc import Sequence
from itertools import count
from statistics import fmean, median
from time import perf_counter
from typing import Final

import httpx2

from benchmarks.simulation_validation.asking import Seen, ask
from benchmarks.simulation_validation.fleet import (
    PAGES,
    READ_MS,
    SEQUENCES,
    STEP_MS,
    STEP_TOKENS,
    Fleet,
)
from benchmarks.simulation_validation.piece import PAGE_TOKENS, SMALLER
from pdgate.lab.simulator.hardware import Hardware

LENGTHS: Final = (64, 250, 500, 1000, 1500)
ROUNDS: Final = 3
TOGETHER: Final = 6
ANSWER: Final = 24

_number = count(1)


async def calibrated(fleet: Fleet, slow_motion: float) -> Hardware:
    """In tokens of the trace."""
    async with (
        httpx2.AsyncClient(base_url=fleet.prefill, timeout=600, trust_env=False) as prefill,
        httpx2.AsyncClient(base_url=fleet.gateway, timeout=600, trust_env=False) as gateway,
    ):
        reads = [(n, await _reads(prefill, n)) for _ in range(ROUNDS) for n in LENGTHS]
        alone = [await ask(gateway, _prompt(250), ANSWER) for _ in range(2 * ROUNDS)]
        together: list[Seen] = []
        for _ in range(ROUNDS):
            async with asyncio.TaskGroup() as clients:
                tasks = [
                    clients.create_task(ask(gateway, _prompt(64), ANSWER)) for _ in range(TOGETHER)
                ]
            together += [task.result() for task in tasks]
    per_token, fixed = line([(tokens, took) for tokens, took in reads if tokens >= LENGTHS[1]])
    step = median(one.tpot for one in alone)
    weights = slow_motion * STEP_MS / 1000
    per_call = max(0.0, (median(one.tpot for one in together) - step) / (TOGETHER / 2 - 1))
    way = median(one.ttft for one in alone) - (fixed + 250 * per_token) - step
    overhead = max(0.0, step - weights - per_call)
    return Hardware(
        overhead_seconds=overhead,
        weights_seconds=weights,
        prompt_token_seconds=max(per_token, slow_motion * READ_MS / 1000) / SMALLER,
        call_seconds=per_call,
        context_token_seconds=0.0,
        pair_seconds=0.0,
        step_tokens=STEP_TOKENS * SMALLER,
        calls=SEQUENCES,
        kv_tokens=PAGES * PAGE_TOKENS * SMALLER,
        kv_bytes_per_token=0,
        link_bytes_per_second=1.0,
        # What a call's reading takes beyond its tokens is on its way, too: neither is shared.
        link_seconds=max(0.0, way + max(0.0, fixed - overhead)),
    )


def line(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Slope, and value at nothing: the least squares."""
    x, y = fmean(p[0] for p in points), fmean(p[1] for p in points)
    slope = sum((a - x) * (b - y) for a, b in points) / sum((a - x) ** 2 for a, _ in points)
    return slope, y - slope * x


async def _reads(prefill: httpx2.AsyncClient, tokens: int) -> float:
    body = {"prompt": _prompt(tokens), "max_tokens": 1, "ignore_eos": True}
    began = perf_counter()
    answer = await prefill.post("/v1/completions", json=body)
    answer.raise_for_status()
    return perf_counter() - began


def _prompt(tokens: int) -> str:
    """One that no engine has seen."""
    begin = f"{next(_number)} "
    return begin + "x" * (tokens - len(begin))
