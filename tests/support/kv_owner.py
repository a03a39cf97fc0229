"""A process that owns a region and says where: `python -m tests.support.kv_owner tcp 4096`.

With `registered` behind it, the backend is given memory instead of asked for it.

Byte i of the region is i % 251. It prints the descriptor as one line of JSON and lives
until its standard input ends. `Owned` runs it.
"""

import json
import sys

from pdgate.transfer import descriptors, registry
from pdgate.transfer.base import Descriptor
from tests.support.told import Told


def pattern(length: int, start: int = 0) -> bytes:
    return bytes(i % 251 for i in range(start, start + length))


class Owned(Told):
    """The process, from the outside."""

    def __init__(self, backend: str, length: int, *, registered: bool = False) -> None:
        words = [backend, length, *(["registered"] if registered else [])]
        super().__init__("tests.support.kv_owner", *words)
        self.descriptor: Descriptor = descriptors.from_data(json.loads(self.answer()))


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
