"""What safety costs: `python -m benchmarks.safety [--rounds N] [--json FILE] [--write]`.

It counts instructions under valgrind (minutes), and CPU time in rounds that take turns. With
--write the table in docs/performance.md is written anew.
"""

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

from benchmarks import page
from benchmarks.guard import callgrind
from benchmarks.safety import measured, report
from benchmarks.safety.costs import costs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--write", action="store_true", help="into docs/performance.md")
    options = parser.parse_args()
    if not callgrind.installed():
        sys.exit(f"safety: {callgrind.MISSING}")
    counted = measured.instructions()
    found = costs(counted, measured.microseconds(options.rounds))
    made = report.safety(found, page.conditions(options.rounds))
    print(made)
    if options.json:
        said = {name: asdict(one) for name, one in found.items()}
        options.json.write_text(json.dumps(said, indent=1) + "\n")
    if options.write:
        page.PAGE.write_text(page.written(page.PAGE.read_text(), "safety", made))


if __name__ == "__main__":
    main()
