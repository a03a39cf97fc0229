"""Where the time of a call goes: `python -m benchmarks.path [--rounds N] [--json FILE] [--write]`.

With --write the table in docs/performance.md is written anew.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks import page
from benchmarks.path.shares import ROWS, Round, of_calls, of_events

SAMPLED_CALLS, SOCKET_CALLS = 4000, 400
LIMIT_SECONDS = 300
HEADS = ("part", "is", "us of a call", "share", "us of an event", "share")
IS = {
    "front end and parser": "`gateway/front`, uvicorn, httptools",
    "intake, keys, admission": "the rest of `gateway`",
    "bodies and protocols": "`protocols`: JSON, ids, SSE",
    "scheduling": "`scheduling`",
    "forwarders": "`forwarders`",
    "upstream and deadlines": "`gateway/upstream`, its parser, `gateway/deadlines.py`",
    "metrics": "`gateway/metrics`",
    "event loop": "uvloop, and asyncio's tasks; user time over sockets that is none of the above",
    "kernel": "system time",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--write", action="store_true", help="into docs/performance.md")
    options = parser.parse_args()
    rounds = [
        Round(_ran("samples", SAMPLED_CALLS), _ran("sockets", SOCKET_CALLS))
        for _ in range(options.rounds)
    ]
    calls, events = of_calls(rounds), of_events(rounds)
    made = f"{table(calls, events)}\n\n{page.conditions(options.rounds)}"
    print(made)
    if options.json:
        said = {"call_us": calls, "event_us": events}
        options.json.write_text(json.dumps(said, indent=1) + "\n")
    if options.write:
        page.PAGE.write_text(page.written(page.PAGE.read_text(), "path", made))


def table(calls: dict[str, float], events: dict[str, float]) -> str:
    of_call, of_event = sum(calls.values()), sum(events.values())
    rows = [
        (
            row,
            IS[row],
            f"{calls[row]:.0f}",
            f"{calls[row] / of_call:.0%}",
            f"{events[row]:.1f}",
            f"{events[row] / of_event:.0%}",
        )
        for row in ROWS
    ]
    return page.table(HEADS, [*rows, ("all", "", f"{of_call:.0f}", "", f"{of_event:.1f}", "")])


def _ran(what: str, calls: int) -> Any:
    command = [sys.executable, "-m", f"benchmarks.path.{what}", str(calls)]
    done = subprocess.run(command, stdout=subprocess.PIPE, timeout=LIMIT_SECONDS, check=True)
    return json.loads(done.stdout)


if __name__ == "__main__":
    main()
