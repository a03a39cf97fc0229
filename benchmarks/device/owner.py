"""The other end, in a process of its own: a driver shares no allocation with the process that made it.

argv      backend, place of the memory ("host", "cuda:0"), bytes, how it can be shared
it says   the descriptor; then an answer to each line:

expect IMMEDIATE COUNT     "ready", and when all has landed the time, of CLOCK_MONOTONIC
"""

import json
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from pdgate.transfer import descriptors, registry
from pdgate.transfer.base import Descriptor, Region
from pdgate.transfer.device.opening import open_device

ROOT = Path(__file__).parents[2]
SECONDS = 120.0


class Other:
    """The process, from the outside."""

    def __init__(self, backend: str, place: str, size: int, by: str = "handle") -> None:
        """Raises ChildProcessError with its last words."""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.device.owner", backend, place, str(size), by],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.descriptor: Descriptor = descriptors.from_data(json.loads(self.hear()))

    def say(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def hear(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline().strip()
        if not line:
            self._process.kill()
            assert self._process.stderr is not None
            words = self._process.stderr.read().strip().splitlines()
            raise ChildProcessError(words[-1] if words else "the other process ended")
        return line

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.communicate()


def opened(backend: Any, place: str, size: int, by: str = "handle") -> Region:
    """Registered memory there."""
    if place == "host":
        region: Region = backend.allocate(size)
        return region
    device: Any = open_device(place)
    region = backend.register(device.allocate(size, by))
    return region


def main() -> None:
    name, place, size, by = sys.argv[1:]
    backend = registry.load(name)
    region = opened(backend, place, int(size), by)
    print(json.dumps(descriptors.as_data(region.descriptor)), flush=True)
    for line in sys.stdin:
        _, immediate, count = line.split()
        arrival = backend.expect(region, int(immediate), int(count), SECONDS)
        print("ready", flush=True)
        arrival.wait(SECONDS)
        print(time.monotonic(), flush=True)
    backend.close()


if __name__ == "__main__":
    main()
