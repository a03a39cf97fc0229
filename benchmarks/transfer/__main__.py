"""python -m benchmarks.transfer [--rounds N] [--only shm,tcp] [--json FILE] [--results FILE] [--smoke]

Prints the tables; see the package for what is measured. Without a network namespace
(tools/isolated.sh) Mooncake is left out, and says so.
"""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from benchmarks.transfer import cases, report, results, rounds
from benchmarks.transfer.contenders import CONTENDERS, Contender


def chosen(names: str) -> list[Contender]:
    """Those named, each with its baseline; all if there are none. Raises KeyError."""
    named = [CONTENDERS[name.strip()] for name in names.split(",") if name.strip()]
    wanted = {name for one in named for name in (one.baseline, one.name)}
    if not named:
        wanted = {one.name for one in CONTENDERS.values() if _confined(one)}
    return [one for one in CONTENDERS.values() if one.name in wanted]


def _confined(one: Contender) -> bool:
    if one.backend != "mooncake" or "PDGATE_LOOPBACK_ONLY" in os.environ:
        return True
    _say(f"{one.name} is left out: it listens on every interface, run this by tools/isolated.sh")
    return False


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.transfer")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--only", default="", help="contenders, with commas between them")
    parser.add_argument("--json", type=Path, help="where to write the figures as JSON")
    parser.add_argument("--results", type=Path, help="page whose tables to rewrite")
    parser.add_argument("--smoke", action="store_true", help="a few small transfers only")
    asked = parser.parse_args(words)
    sizes, region_bytes = (
        (cases.SMOKE, cases.SMOKE_REGION_BYTES)
        if asked.smoke
        else (cases.FULL, cases.FULL_REGION_BYTES)
    )
    about = results.machine(asked.rounds)
    found = rounds.run(chosen(asked.only), sizes, region_bytes, asked.rounds, _say)
    if asked.json:
        asked.json.write_text(json.dumps([asdict(one) for one in found], indent=1) + "\n")
    shown = report.markdown(found)
    if asked.results:
        results.rewrite(asked.results, "transfer", f"{about}\n\n{shown}")
    print(shown)


if __name__ == "__main__":
    main()
