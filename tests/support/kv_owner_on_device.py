"""A process that owns a device's memory: `python -m tests.support.kv_owner_on_device cuda-ipc fake:0 4096`.

Byte i of the region is i % 251. It prints the descriptor as one line of JSON, and after each line
that it hears the bytes' CRC; `close` closes the region first. It lives until its standard input ends.
`OwnedOnDevice` runs it.
"""

import json
import sys
import zlib

from pdgate.transfer import descriptors, registry
from pdgate.transfer.base import Descriptor
from pdgate.transfer.device.opening import open_device
from tests.support.kv_devices import Buffer
from tests.support.kv_owner import pattern
from tests.support.told import Told


class OwnedOnDevice(Told):
    """The process, from the outside."""

    def __init__(self, backend: str, device: str, length: int) -> None:
        super().__init__("tests.support.kv_owner_on_device", backend, device, length)
        self.descriptor: Descriptor = descriptors.from_data(json.loads(self.answer()))


def main() -> None:
    backend = registry.load(sys.argv[1])
    device, length = open_device(sys.argv[2]), int(sys.argv[3])
    buffer = Buffer(backend, device, pattern(length))
    print(json.dumps(descriptors.as_data(buffer.region.descriptor)), flush=True)
    for line in sys.stdin:
        if line.strip() == "close":
            buffer.region.close()
            device.free(buffer.memory)
            print("freed", flush=True)
        else:
            print(zlib.crc32(buffer.content), flush=True)
    backend.close()


if __name__ == "__main__":
    main()
