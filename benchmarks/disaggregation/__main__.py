"""python -m benchmarks.disaggregation [--rounds N] [--calls N] [--slow-motion N] [--svg FILE]

Prints the table, and draws the picture beside this file unless told otherwise.
"""

import argparse
import json
import signal
import sys
from pathlib import Path

from benchmarks.disaggregation import chart, report
from benchmarks.disaggregation.fleet import fleet
from benchmarks.disaggregation.rounds import Plan, measure


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.disaggregation")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--calls", type=int, default=24, help="of each rule, mix and round")
    parser.add_argument(
        "--slow-motion", type=float, default=1.0, help="times as long, for a busy machine"
    )
    parser.add_argument("--svg", type=Path, default=Path(__file__).with_name("chart.svg"))
    parser.add_argument("--json", type=Path, help="where to write the figures as JSON")
    asked = parser.parse_args()
    # As an error, so that the fleet ends with us.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("asked to end"))
    with fleet(asked.slow_motion) as gateways:
        figures = measure(gateways, Plan(asked.rounds, asked.calls))
    asked.svg.write_text(chart.svg(figures), encoding="utf-8")
    if asked.json:
        asked.json.write_text(json.dumps(figures, indent=2), encoding="utf-8")
    print(report.table(figures))


if __name__ == "__main__":
    main()
