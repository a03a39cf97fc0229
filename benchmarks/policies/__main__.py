"""python -m benchmarks.policies [--trace FILE] [--calls N] [--policies A,B] [--capacity X] [--processes N] [--dry]"""

import argparse
import sys
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Final

from benchmarks.peers import PEERS
from benchmarks.policies import report
from benchmarks.policies.measure import AT_ENGINES, BOUNDED, TARGETS, Found, at_load, plan_of
from benchmarks.policies.shapes import of_shapes
from pdgate.lab.simulator.bound import Bound, bound, capacity
from pdgate.lab.simulator.comparing import Case
from pdgate.lab.simulator.pictures.page import goodput
from pdgate.lab.simulator.trace import BadTrace, faster, read
from pdgate.lab.simulator.world import WorldPlan
from pdgate.scheduling.policy import DEFAULT

HERE = Path(__file__).parent
TRACE = HERE.parents[2] / "shared/traces/conversation_trace.jsonl"

OURS = (
    *(DEFAULT, BOUNDED, AT_ENGINES, "prefix_then_load", "least_latency", "least_loaded"),
    *("sticky_session", "lmetric", "round_robin"),
)

LOADS: Final = {
    "A third of capacity": 1 / 3,
    "Half of capacity": 0.5,
    "Two thirds of capacity": 2 / 3,
    "Capacity": 1.0,
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.policies")
    parser.add_argument("--trace", type=Path, default=TRACE)
    parser.add_argument("--calls", type=int, help="only the first so many")
    parser.add_argument("--policies", default=";".join((*OURS, *PEERS)), help="between semicolons")
    parser.add_argument("--capacity", type=float, help="if known: the search takes a minute")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--shapes", type=int, default=3000, help="calls of each made-up trace")
    parser.add_argument("--dry", action="store_true", help="print, and write nothing")
    asked = parser.parse_args()
    try:
        asks = read(asked.trace)[: asked.calls]
    except BadTrace as error:
        sys.exit(str(error))
    names = asked.policies.split(";")
    most: float = asked.capacity or capacity(plan_of(DEFAULT), asks)
    loads = {called: share * most for called, share in LOADS.items()}
    limits = {load: bound(plan_of(DEFAULT), faster(asks, load)) for load in loads.values()}
    found: dict[str, Found] = {name: {} for name in names}
    with ProcessPoolExecutor(asked.processes, get_context("spawn")) as pool:
        runs = {
            (name, load): pool.submit(at_load, name, asks, load)
            for load in loads.values()
            for name in found
        }
        for (name, load), one in runs.items():
            found[name][load] = one.result()
        shapes = of_shapes(pool, asked.shapes)
    tables = {
        called: (load, limits[load], {name: of[load] for name, of in found.items()})
        for called, load in loads.items()
    }
    per_second = (len(asks) - 1) / (asks[-1].at - asks[0].at)
    text = report.part(tables, TARGETS, DEFAULT, per_second, " ".join(sys.argv[1:]), shapes)
    print(text)
    if not asked.dry:
        (HERE / "goodput.svg").write_text(picture(found, limits), encoding="utf-8")
        report.put(HERE.parent / "RESULTS.md", text)


def picture(found: Mapping[str, Found], limits: Mapping[float, Bound]) -> str:
    """Of all that was simulated; other loads cost minutes and show the same."""
    cases = [Case(name, load, WorldPlan()) for name, of in found.items() for load in of]
    return goodput(cases, [one for of in found.values() for one in of.values()], limits)


if __name__ == "__main__":
    main()
