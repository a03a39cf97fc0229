"""The two processes of a contender, from the outside; stopped unless it is their turn."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from benchmarks.transfer import cases
from benchmarks.transfer.contenders import Contender
from benchmarks.transfer.ends import Calls

END_SECONDS = 30.0


class Process:
    def __init__(self, words: list[str]) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "benchmarks.transfer.process", str(theirs.fileno()), *words],
                pass_fds=(theirs.fileno(),),
            )
        with ours:
            self._lines = ours.makefile("rw")
        self.hello: Any = self._read()

    def ask(self, order: dict[str, Any]) -> Any:
        print(json.dumps(order), file=self._lines, flush=True)
        return self._read()

    @property
    def pid(self) -> int:
        return self._process.pid

    def signal(self, number: signal.Signals) -> None:
        os.kill(self._process.pid, number)

    def close(self) -> None:
        try:
            print("null", file=self._lines, flush=True)
            self._process.wait(END_SECONDS)
        finally:
            # Also after an error, when it may still wait for its peer.
            self._process.kill()
            self._process.wait()
            self._lines.close()

    def _read(self) -> Any:
        line = self._lines.readline()
        if not line:
            raise RuntimeError(f"a process of the benchmark ended: {self._process.wait()}")
        return json.loads(line)


@dataclass(frozen=True, slots=True)
class Measured:
    """
    Attributes:
        seconds: Of each call.
        cpu_seconds: Of both processes together, over all calls.
    """

    seconds: list[float]
    cpu_seconds: float


class Pair:
    def __init__(self, contender: Contender, region_bytes: int) -> None:
        """Raises RuntimeError if one of the two does not start."""
        with ExitStack() as stack:
            self._far = Process([contender.name, str(region_bytes)])
            stack.callback(self._far.close)
            card = json.dumps(self._far.hello)
            self._near = Process([contender.name, str(region_bytes), card])
            stack.pop_all()
        self._signal(signal.SIGSTOP)

    def measure(self, calls: Calls, in_flight: int) -> Measured:
        """Raises RuntimeError if other bytes arrive than were sent."""
        with self._awake():
            data = cases.as_data(calls)
            self._far.ask({"prepare": data})
            before = self._cpu()
            seconds = self._near.ask({"write": data, "in_flight": in_flight})["seconds"]
            used = self._cpu() - before
            self._far.ask({"verify": data})
        return Measured(seconds, used)

    def close(self) -> None:
        self._signal(signal.SIGCONT)
        try:
            self._near.close()
        finally:
            self._far.close()

    def _cpu(self) -> float:
        return float(sum(one.ask({"cpu": True})["seconds"] for one in (self._near, self._far)))

    @contextmanager
    def _awake(self) -> Iterator[None]:
        self._signal(signal.SIGCONT)
        try:
            yield
        finally:
            self._signal(signal.SIGSTOP)

    def _signal(self, number: signal.Signals) -> None:
        for one in (self._near, self._far):
            one.signal(number)
