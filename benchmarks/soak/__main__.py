"""python -m benchmarks.soak [--minutes 30] [--rate 200] [--faults 0.01] [--seed 1] [--json FILE]

Exit code 1 if memory grew, a call got another's answer, hung, failed without need, or something was
still counted as in flight when all was over.
"""

import argparse
import asyncio
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic, sleep
from typing import Any
from urllib.request import urlopen

from benchmarks.soak.faults import may_fail, must_fail
from benchmarks.soak.load import SHOWN, Answers, ask_for
from pdgate.lab.chaos import running

WARM_SECONDS = 300.0
"""After which memory may grow no more than GROWTH_BYTES."""
GROWTH_BYTES = 5 << 20
LEAVING_SECONDS = 10.0
"""For the gateway to be done with the last calls after their clients are."""
ENGINES = (sys.executable, "-m", "benchmarks.soak.engines")
SERVE = (sys.executable, "-m", "pdgate", "serve", "--port", "0", "--pdd-protocol", "vllm-nixl")
GAUGES = ("pdgate_calls_in_flight", "pdgate_instance_calls", "pdgate_kv_held")
_PAGE_BYTES = os.sysconf("SC_PAGESIZE")


@dataclass(frozen=True, slots=True)
class Holding:
    """What a process holds, as Linux tells it.

    Attributes:
        bytes: Resident memory.
        descriptors: Open files and sockets.
    """

    bytes: int
    descriptors: int


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soak")
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--rate", type=float, default=200.0, help="calls a second")
    parser.add_argument("--faults", type=float, default=0.01, help="share of engines' requests")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, help="where to write the figures as JSON")
    asked = parser.parse_args()
    figures = asyncio.run(soak(asked.minutes * 60, asked.rate, asked.faults, asked.seed))
    print(json.dumps(figures, indent=2))
    if asked.json:
        asked.json.write_text(json.dumps(figures, indent=2), encoding="utf-8")
    sys.exit(1 if figures["amiss"] else 0)


async def soak(seconds: float, rate: float, faults: float, seed: int) -> dict[str, Any]:
    with TemporaryDirectory() as folder:
        report = Path(folder) / "faults.json"
        flags = ("--faults", str(faults), "--seed", str(seed), "--report", str(report))
        answers, held, left = await _asked((*ENGINES, *flags), seconds, rate)
        met = json.loads(report.read_text(encoding="utf-8"))
    return _figures(answers, met, held, left, seconds)


async def _asked(
    engines: Sequence[str], seconds: float, rate: float
) -> tuple[Answers, list[Holding], dict[str, float]]:
    """What came back, what the gateway held every second, and what it counts after the end."""
    async with running(engines, ready='{"prefill"') as engine:
        urls = json.loads(engine.ready_line)
        flags = [f"--{role}={url}" for role, found in urls.items() for url in found]
        async with running((*SERVE, *flags), ready="pdgate listens") as gateway:
            port = int(gateway.ready_line.rsplit(":", 1)[1])
            held: list[Holding] = []

            def look(answers: Answers) -> None:
                held.append(holding(gateway.pid))
                _show(answers, held[-1])

            answers = await ask_for(port, rate, seconds, look)
            return answers, held, await asyncio.to_thread(_gauges, port)


def _show(answers: Answers, now: Holding) -> None:
    if sys.stderr.isatty():
        done = f"{answers.good} good, {len(answers.failed)} failed of {answers.asked}"
        print(f"\r{done}, {now.bytes / 1e6:.1f} MB ", end="", file=sys.stderr)


def _gauges(port: int) -> dict[str, float]:
    """What is still counted as going on, once the gateway has had time to see that its clients left."""
    deadline = monotonic() + LEAVING_SECONDS
    while True:
        with urlopen(f"http://127.0.0.1:{port}/metrics") as page:
            lines = page.read().decode().splitlines()
        found = (line.rsplit(" ", 1) for line in lines if line.startswith(GAUGES))
        left = {name: float(value) for name, value in found if float(value)}
        if not left or monotonic() > deadline:
            return left
        sleep(0.1)


def _figures(
    answers: Answers,
    met: dict[str, list[tuple[str, str]]],
    held: list[Holding],
    left: dict[str, float],
    seconds: float,
) -> dict[str, Any]:
    faults = {name: [(role, fault) for role, fault in found] for name, found in met.items()}
    needless = {n: e for n, e in answers.failed.items() if not may_fail(faults.get(n, ()))}
    unsaid = [n for n, found in faults.items() if must_fail(found) and n not in answers.failed]
    warm = held[min(len(held) - 1, int(min(WARM_SECONDS, seconds / 2)))]
    grown = held[-1].bytes - warm.bytes
    amiss = {
        "calls that failed without need": dict(list(needless.items())[:SHOWN]),
        "calls whose end nobody said": unsaid[:SHOWN],
        "wrong answers": dict(list(answers.wrong.items())[:SHOWN]),
        "calls that hung": dict(list(answers.slow.items())[:SHOWN]),
        "still counted": left,
        "grown by bytes": grown if grown > GROWTH_BYTES else 0,
    }
    return {
        "seconds": seconds,
        "calls": answers.asked,
        "good": answers.good,
        "failed": len(answers.failed),
        "faults": sum(map(len, faults.values())),
        "hung": len(answers.slow),
        "longest pause of the machine": round(answers.longest_pause, 2),
        "calls that had to fail": sum(map(must_fail, faults.values())),
        "megabytes": [round(held[n].bytes / 1e6, 1) for n in range(0, len(held), 60)],
        "grown by bytes after the first minutes": grown,
        "descriptors": [held[0].descriptors, held[-1].descriptors],
        "amiss": {what: found for what, found in amiss.items() if found},
    }


def holding(pid: int) -> Holding:
    """Raises FileNotFoundError when it is gone."""
    folder = Path(f"/proc/{pid}")
    pages = int((folder / "statm").read_text(encoding="ascii").split()[1])
    return Holding(pages * _PAGE_BYTES, len(list((folder / "fd").iterdir())))


if __name__ == "__main__":
    main()
