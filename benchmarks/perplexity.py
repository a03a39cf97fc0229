"""One prefill and three decode engines against four that do both: what the crossing adds, and how fast streams are.

    python -m benchmarks.perplexity [--calls N] [--slow-motion N] [--simulated]

The shape of Perplexity's experiment, twice: with reference engines whose steps are paced as those of a small model on a GPU, over the push protocol of
their messenger's kind (vllm-kvt, layer by layer), and in the simulator with the figures of an 8B model. In both, the same calls at the same times go to
four engines, of which one reads and three answer, or each does all of a call.
"""

import argparse
import asyncio
import itertools
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from random import Random
from statistics import fmean, median
from typing import Final

import httpx2

from benchmarks.disaggregation.load import times_of_tokens
from pdgate.lab.simulator.summary import summary
from pdgate.lab.simulator.trace import BLOCK_TOKENS, TraceCall
from pdgate.lab.simulator.world import WorldPlan, run
from pdgate.scheduling.disaggregation import Never
from tests.support.processes import child

APART: Final = "1P:3D"
TOGETHER: Final = "four that do both"
START_SECONDS: Final = 120
STEP_MS, READ_MS = 20.0, 0.1
"""Of a step of decode, and for each prompt token in a step."""
PROMPT_BYTES, ANSWER_TOKENS = 800, 24
"""The built-in model takes a byte for a token."""
SIMULATED_PROMPT, SIMULATED_ANSWER = 4000, 300


@dataclass(frozen=True, slots=True)
class StreamFigures:
    """Seconds.

    Attributes:
        alone: Until the first token of a call that has the engines to itself.
        first: The same under load, the median and the 99th percentile (the last one where there are few).
        gap: Between two tokens under load: means of calls, their median and the 99th percentile (the longest where there are few).
    """

    alone: float
    first: tuple[float, float]
    gap: tuple[float, float]

    def row(self, name: str) -> str:
        return (
            f"{name:18} {self.alone * 1000:9.0f} {self.first[0] * 1000:9.0f} {self.first[1] * 1000:9.0f} "
            f"{1 / self.gap[0]:9.1f} {1 / self.gap[1]:9.1f}"
        )


HEAD: Final = f"{'':18} {'alone':>9} {'TTFT p50':>9} {'TTFT p99':>9} {'tokens/s':>9} {'slowest':>9}"


@contextmanager
def gateways(slow_motion: float) -> Iterator[dict[str, str]]:
    """Of four engines each, one after the other to ask; by name."""
    pace = ("--min-itl-ms", f"{slow_motion * STEP_MS}", "--min-read-ms", f"{slow_motion * READ_MS}")
    common = ("--no-prefix-cache", "--blocks", "1024", *pace)
    with ExitStack() as running:

        def start(*words: str) -> str:
            command = [sys.executable, "-m", "pdgate", words[0], "--port", "0", *words[1:]]
            process = running.enter_context(child(command, name=words[0]))
            ready = r"(?:engine ready|pdgate listens on) (http://\S+)(?:.* kv=(\S+))?"
            found = process.wait_for_line(ready, START_SECONDS)
            if words[0] == "serve":
                process.wait_for_http(f"{found[1]}/ready", START_SECONDS)
            return f"{found[1]},kv={found[2]}" if found[2] else found[1]

        pushed = ("--pdd-protocol", "vllm-kvt", "--transfer", "shm")
        prefill = start("engine", "--role", "prefill", *pushed, *common)
        decodes = [start("engine", "--role", "decode", *pushed, *common) for _ in range(3)]
        plains = [start("engine", "--role", "plain", *common) for _ in range(4)]
        batch = ("--pdd-protocol", "vllm-kvt", "--scheduling-mode", "batch")
        yield {
            APART: start(
                "serve",
                *batch,
                f"--instance=role=prefill,url={prefill}",
                *(f"--decode={url.split(',')[0]}" for url in decodes),
            ),
            TOGETHER: start("serve", *(f"--instance=role=plain,url={url}" for url in plains)),
        }


def measured(url: str, calls: int, slow_motion: float) -> StreamFigures:
    """Raises what an answer that is not whole raises."""
    # As many that two of three steps of prefill's are taken up, if it reads one prompt after the other.
    pause = slow_motion * READ_MS * PROMPT_BYTES / 1000 / 0.65
    alone = [asyncio.run(_asked(url, [0.0])) for _ in range(3)]
    times = asyncio.run(_asked(url, _arrivals(calls, pause)))
    firsts = sorted(call[1] - call[0] for call in times)
    gaps = [fmean(b - a for a, b in itertools.pairwise(call[1:])) for call in times]
    return StreamFigures(
        alone=median(one[0][1] - one[0][0] for one in alone),
        first=(median(firsts), firsts[int(0.99 * len(firsts))]),
        gap=(median(gaps), max(gaps)),
    )


def _arrivals(calls: int, pause: float) -> list[float]:
    random = Random(7)
    return list(itertools.accumulate(random.expovariate(1 / pause) for _ in range(calls)))


async def _asked(url: str, at: Sequence[float]) -> list[list[float]]:
    """For each call when it was asked, and when each token came."""
    async with (
        httpx2.AsyncClient(base_url=url, timeout=300, trust_env=False) as http,
        asyncio.TaskGroup() as clients,
    ):
        tasks = [clients.create_task(_ask(http, n, later)) for n, later in enumerate(at)]
    return [task.result() for task in tasks]


async def _ask(http: httpx2.AsyncClient, number: int, later: float) -> list[float]:
    await asyncio.sleep(later)
    prompt = f"{number} {later} ".ljust(PROMPT_BYTES, "abcdefgh"[number % 8])
    body = {
        "prompt": prompt,
        "max_tokens": ANSWER_TOKENS,
        "stream": True,
        "ignore_eos": True,
        "model": "pdgate-tiny",
    }
    return await times_of_tokens(http, body)


def simulated(calls: int, per_second: float) -> dict[str, StreamFigures]:
    """With the figures of an 8B model on one large GPU each, and prompts that have nothing in common."""
    apart = WorldPlan(prefills=1, decodes=3)
    plans = {
        APART: apart,
        TOGETHER: replace(apart, prefills=0, decodes=0, both=4, rule=Never),
    }
    return {name: _simulated(plan, calls, per_second) for name, plan in plans.items()}


def _simulated(plan: WorldPlan, calls: int, per_second: float) -> StreamFigures:
    alone = summary(run(plan, _trace([0.0, 1000.0])))
    loaded = summary(run(plan, _trace(_arrivals(calls, 1 / per_second))))
    return StreamFigures(
        alone=alone.ttft.p50,
        first=(loaded.ttft.p50, loaded.ttft.p99),
        gap=(loaded.tpot.p50, loaded.tpot.p99),
    )


def _trace(at: Sequence[float]) -> list[TraceCall]:
    blocks = -(-SIMULATED_PROMPT // BLOCK_TOKENS)
    return [
        TraceCall(
            later, SIMULATED_PROMPT, SIMULATED_ANSWER, tuple(range(n * blocks, (n + 1) * blocks))
        )
        for n, later in enumerate(at)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.perplexity")
    parser.add_argument("--calls", type=int, default=40)
    parser.add_argument("--slow-motion", type=float, default=1.0, help="times as long steps")
    parser.add_argument("--simulated", action="store_true", help="the simulator alone")
    asked = parser.parse_args()
    for rate in (2.0, 4.0, 6.0):
        print(
            f"simulated, 8B, {SIMULATED_PROMPT} tokens and {SIMULATED_ANSWER}, {rate:g} calls a second\n{HEAD}"
        )
        for name, found in simulated(2000, rate).items():
            print(found.row(name), flush=True)
    if asked.simulated:
        return
    print(f"reference engines, {PROMPT_BYTES} tokens and {ANSWER_TOKENS}\n{HEAD}")
    with gateways(asked.slow_motion) as urls:
        for name, url in urls.items():
            print(measured(url, asked.calls, asked.slow_motion).row(name), flush=True)


if __name__ == "__main__":
    main()
