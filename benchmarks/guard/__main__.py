"""`make guard`: compares with baseline.json; `make guard ARGS=--update` writes it anew."""

import argparse
import os
import sys
from collections.abc import Mapping

from benchmarks.guard import callgrind
from benchmarks.guard.baseline import FILE, Baseline
from benchmarks.guard.figures import figures
from benchmarks.guard.measured import instructions, traces
from benchmarks.guard.verdict import NotComparable, judge


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--update", action="store_true", help="agree to what it costs now")
    update = parser.parse_args().update
    now = Baseline.of(figures(_instructions(must=update), traces()))
    if update:
        FILE.write_text(now.as_json())
        print(f"{FILE.name} is written")
        return
    try:
        verdict = judge(Baseline.from_json(FILE.read_text()), now)
    except NotComparable as why:
        sys.exit(f"guard: {why}; `make guard ARGS=--update` makes a new baseline")
    print(*verdict.lines, sep="\n")
    if verdict.worse:
        sys.exit(f"guard: dearer than agreed: {', '.join(verdict.worse)}")
    print("guard: no dearer than agreed")


def _instructions(*, must: bool) -> Mapping[str, Mapping[str, float]] | None:
    if callgrind.installed():
        return instructions()
    if must or os.environ.get("CI"):
        sys.exit(f"guard: {callgrind.MISSING}")
    print(f"{callgrind.MISSING}; bytecodes are compared instead, which miss what C code costs")
    return None


if __name__ == "__main__":
    main()
