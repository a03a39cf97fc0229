"""python -m benchmarks.papers [mooncake | distserve] [--trace FILE] [--calls N] [--scale 1,2,3]"""

import argparse
import sys
from pathlib import Path
from typing import Final

from benchmarks.papers import distserve, mooncake
from pdgate.lab.simulator.asked import BadSimulatorFlag, numbers_of
from pdgate.lab.simulator.trace import BadTrace, read

TRACE: Final = Path(__file__).parents[3] / "shared/traces/conversation_trace.jsonl"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.papers")
    parser.add_argument("paper", nargs="?", choices=("mooncake", "distserve"), default="mooncake")
    parser.add_argument("--trace", type=Path, default=TRACE)
    parser.add_argument("--calls", type=int, help="only the first so many")
    parser.add_argument("--scale", default="2,3,4", help="times the trace's pace, between commas")
    asked = parser.parse_args()
    if asked.paper == "distserve":
        print(distserve.table(asked.calls or distserve.CALLS))
        return
    try:
        asks, scales = read(asked.trace)[: asked.calls], numbers_of("--scale", asked.scale)
    except (BadTrace, BadSimulatorFlag) as error:
        sys.exit(str(error))
    print(mooncake.table(asks, scales))


if __name__ == "__main__":
    main()
