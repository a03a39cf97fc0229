"""One end as a process: python -m benchmarks.transfer.process FD NAME LENGTH [CARD]

Near if there is a card, else far. It does what comes as JSON lines on the socket FD, and
answers each with one line:

    far     {"prepare": calls}  {"verify": calls}
    near    {"write": calls, "in_flight": n} -> {"seconds": of each call}
    both    {"cpu": true}       -> {"seconds": CPU of all threads}, null: the end
"""

import json
import socket
import sys
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from benchmarks.transfer import cases, ends
from benchmarks.transfer.contenders import CONTENDERS
from benchmarks.transfer.ends import Calls, Far, Near


def _far(end: Far, order: dict[str, Any]) -> object:
    match order:
        case {"prepare": data}:
            calls = cases.from_data(data)
            ends.wipe(end.memory, calls)
            end.prepare(calls)
        case {"verify": data}:
            ends.verify(end.memory, cases.from_data(data))
    return {}


def _near(end: Near, order: dict[str, Any]) -> object:
    calls, in_flight = cases.from_data(order["write"]), order["in_flight"]
    return {"seconds": _overlapped(end, calls, in_flight) if in_flight > 1 else _timed(end, calls)}


def _timed(end: Near, calls: Calls) -> list[float]:
    seconds = []
    for ranges in calls:
        start = time.perf_counter()
        end.begin(ranges)()
        seconds.append(time.perf_counter() - start)
    return seconds


def _overlapped(end: Near, calls: Calls, in_flight: int) -> list[float]:
    """Each call's share of the time of all."""
    begun: deque[Callable[[], None]] = deque()
    start = time.perf_counter()
    for ranges in calls:
        if len(begun) == in_flight:
            begun.popleft()()
        begun.append(end.begin(ranges))
    for finish in begun:
        finish()
    return [(time.perf_counter() - start) / len(calls)] * len(calls)


def _serve(sock: socket.socket, obey: Callable[[dict[str, Any]], object], hello: object) -> None:
    with sock.makefile("rw") as lines:
        print(json.dumps(hello), file=lines, flush=True)
        while (order := json.loads(lines.readline() or "null")) is not None:
            answer = {"seconds": time.process_time()} if "cpu" in order else obey(order)
            print(json.dumps(answer), file=lines, flush=True)


def main() -> None:
    fd, name, length, *card = sys.argv[1:]
    contender = CONTENDERS[name]
    with socket.socket(fileno=int(fd)) as sock:
        if card:
            near = contender.near(int(length), json.loads(card[0]))
            ends.fill(near.memory)
            _serve(sock, lambda order: _near(near, order), {})
            near.close()
        else:
            far = contender.far(int(length))
            _serve(sock, lambda order: _far(far, order), dict(far.card))
            far.close()


if __name__ == "__main__":
    main()
