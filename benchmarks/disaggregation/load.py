"""Clients that each ask one call after the other, and when they saw what."""

import asyncio
import itertools
import json
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from time import perf_counter

import httpx2

CLIENTS = 4
SHORT_BYTES, LONG_BYTES = 50, 800
"""The built-in model takes a byte for a token."""

ANSWER_TOKENS = 16

_number = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Seen:
    """
    Attributes:
        first_seconds: From asking to the first token, mean over the calls.
        pace_seconds: Between two tokens, mean over all of them.
        last_seconds: From asking to the last token, mean over the calls.
    """

    first_seconds: float
    pace_seconds: float
    last_seconds: float


def lengths(calls: int, share_of_long: float, seed: int) -> list[int]:
    """So many calls in an order of their own: bytes of each prompt."""
    long = round(calls * share_of_long)
    mixed = [LONG_BYTES] * long + [SHORT_BYTES] * (calls - long)
    random.Random(seed).shuffle(mixed)
    return mixed


def ask_all(url: str, prompts: Sequence[int]) -> Seen:
    """Raises what an answer that is not whole raises."""
    return asyncio.run(_ask_all(url, prompts))


async def _ask_all(url: str, prompts: Sequence[int]) -> Seen:
    left = iter(prompts)
    times: list[list[float]] = []
    async with (
        httpx2.AsyncClient(base_url=url, timeout=300, trust_env=False) as http,
        asyncio.TaskGroup() as clients,
    ):
        for _ in range(CLIENTS):
            clients.create_task(_client(http, left, times))
    return Seen(
        first_seconds=fmean(call[1] - call[0] for call in times),
        pace_seconds=fmean(b - a for call in times for a, b in itertools.pairwise(call[1:])),
        last_seconds=fmean(call[-1] - call[0] for call in times),
    )


async def _client(http: httpx2.AsyncClient, left: Iterator[int], times: list[list[float]]) -> None:
    for length in left:
        call = await _ask(http, length)
        times.append(call)


async def _ask(http: httpx2.AsyncClient, length: int) -> list[float]:
    """When it was asked, and when each token came."""
    prompt = f"{next(_number)} ".ljust(length, "abcdefgh"[next(_number) % 8])
    body = {"prompt": prompt, "max_tokens": ANSWER_TOKENS, "stream": True, "ignore_eos": True}
    return await times_of_tokens(http, body)


async def times_of_tokens(http: httpx2.AsyncClient, body: Mapping[str, object]) -> list[float]:
    """When a streamed completion was asked for, and when each of its events with a token came. Raises RuntimeError for too few."""
    wanted = body["max_tokens"]
    assert isinstance(wanted, int)
    seen = [perf_counter()]
    async with http.stream("POST", "/v1/completions", json=body) as answer:
        answer.raise_for_status()
        seen += [perf_counter() async for line in answer.aiter_lines() if is_token(line)]
    if len(seen) <= wanted // 2:
        raise RuntimeError(f"only {len(seen) - 1} events of {wanted} tokens")
    return seen


def is_token(line: str) -> bool:
    return line.startswith("data: {") and bool(json.loads(line.removeprefix("data: "))["choices"])
