"""What `--early-first-token` gains over stock vLLM: python -m ...measure_early

    gateway with the flag    -.
                               >-- P, D (NIXL)     prompts to both in turn, so that a busy machine is busy for both
    gateway without the flag -'

For each length, the median over ROUNDS prompts of the time from the call to the first text of a greedy stream, with
engines that do nothing else. Of prompts whose answer begins with half a character the token does not go early, so they are left out.

Needs run.sh's environment, without its pytest; figures are in docs/operations/early-first-token.md.
"""

import os
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any, Final

from openai import OpenAI

from tests.end_to_end.vllm.asking import client, complete, prompt
from tests.end_to_end.vllm.engines import BLOCK, MODEL, NIXL, Pair, fleet_of, ready, start_single
from tests.end_to_end.vllm.gateway import UNWATCHED, gateway_over

ROUNDS: Final = 15
LENGTHS: Final = (10 * BLOCK, 60 * BLOCK)
WAYS: Final = {"with": ("--early-first-token",), "without": ()}


def first_text_seconds(asked: OpenAI, tokens: list[int]) -> float:
    options: dict[str, Any] = {"temperature": 0, "stream": True, "extra_body": {"ignore_eos": True}}
    begun = time.perf_counter()
    with asked.completions.create(model=MODEL, prompt=tokens, max_tokens=4, **options) as chunks:
        for chunk in chunks:
            if chunk.choices and chunk.choices[0].text:
                return time.perf_counter() - begun
    raise AssertionError("a stream without text")


def begins_whole(reference: OpenAI, tokens: list[int]) -> bool:
    """Whether the answer begins with a whole character."""
    first = complete(reference, tokens, max_tokens=1).text
    return bool(first) and "\N{REPLACEMENT CHARACTER}" not in first


def prompts(reference: OpenAI, length: int) -> Iterator[list[int]]:
    number = 0
    while True:
        number += 1
        tokens = prompt(length, f"measured {length} {number}")
        if begins_whole(reference, tokens):
            yield tokens


def main() -> None:
    venv, model, logs = (
        Path(os.environ[f"PDGATE_VLLM_{what}"]) for what in ("VENV", "MODEL", "LOGS")
    )
    with ExitStack() as stack:
        fleet = stack.enter_context(fleet_of(venv, model, logs))
        single = start_single(fleet, stack)
        pair = Pair(fleet, NIXL, stack)
        reference = stack.enter_context(client(ready(*single).url))
        asking = {}
        for way, flags in WAYS.items():
            over = gateway_over(pair, "staged", logs, flags=(*UNWATCHED, *flags))
            asking[way] = stack.enter_context(client(stack.enter_context(over).url))
        for length in LENGTHS:
            took: dict[str, list[float]] = {way: [] for way in WAYS}
            found = prompts(reference, length)
            # The first round is to warm up.
            for _ in range(ROUNDS + 1):
                for way, asked in asking.items():
                    took[way].append(first_text_seconds(asked, next(found)))
            figures = {way: round(1000 * median(times[1:]), 1) for way, times in took.items()}
            print(f"{length} tokens, ms to the first text: {figures}", flush=True)


if __name__ == "__main__":
    main()
