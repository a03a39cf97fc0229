"""A process that owns a region and says where: `python -m tests.support.kv_owner tcp 4096`.

With `registered` behind it, the backend is given memory instead of asked for it.

Byte i of the region is i % 251. It prints the descriptor as one line of JSON and lives
until its standard input ends. `Owned` runs it.
"""

import json
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

from pdgate.transfer import descriptors, registry
from pdgate.transfer.base import Descriptor
from tests.support.freezing import freeze

ROOT = Path(__file__).parents[2]


def pattern(length: int, start: int = 0) -> bytes:
    return bytes(i % 251 for i in range(start, start + length))


class Owned:
    """The process, from the outside."""

    def __init__(self, backend: str, length: int, *, registered: bool = False) -> None:
        words = [backend, str(length), *(["registered"] if registered else [])]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.kv_owner", *words],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self._process.stdout is not None
        self.descriptor: Descriptor = descriptors.from_data(
            json.loads(self._process.stdout.readline())
        )

    def freeze(self) -> None:
        freeze(self._process.pid)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.kill()
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()


def main() -> None:
    backend = registry.load(sys.argv[1])
    length = int(sys.argv[2])
    if sys.argv[3:] == ["registered"]:
        region = backend.register(memoryview(bytearray(length)))
    else:
        region = backend.allocate(length)
    region.memory[:] = pattern(len(region.memory))
    print(json.dumps(descriptors.as_data(region.descriptor)), flush=True)
    sys.stdin.read()
    backend.close()


if __name__ == "__main__":
    main()
