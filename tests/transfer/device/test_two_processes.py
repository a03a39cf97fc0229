"""A device's memory between two processes, as on a GPU: on_gpu.sh runs this file on one."""

import json
import random
import subprocess
import sys
import zlib
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from pdgate.transfer import descriptors, registry
from pdgate.transfer.base import Backend, Descriptor, PeerLost, Range, StaleDescriptor
from pdgate.transfer.device.base import Device
from tests.support import waiting
from tests.support.kv_devices import DEVICE, Buffer, a_device
from tests.support.kv_owner import pattern

SECONDS = waiting.PATIENCE_SECONDS
ROOT = Path(__file__).parents[3]
LENGTH = 40 * 4096


class Owner:
    def __init__(self, backend: str) -> None:
        self.process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "tests.support.kv_owner_on_device",
                backend,
                DEVICE,
                str(LENGTH),
            ],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        said = self.process.stdout.readline()
        self.descriptor: Descriptor = descriptors.from_data(json.loads(said))

    def hears(self, line: str) -> str:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()

    def end(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()


@pytest.fixture(params=["cuda-ipc", "shm", "tcp"])
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def device() -> Iterator[Device]:
    with a_device() as found:
        yield found


@pytest.fixture
def ours(name: str) -> Iterator[Backend]:
    with closing(registry.load(name)) as backend:
        yield backend


@pytest.fixture
def owner(name: str) -> Iterator[Owner]:
    made = Owner(name)
    try:
        yield made
    finally:
        made.end()


def test_pages_go_both_ways_and_a_dead_owner_is_noticed(
    device: Device, ours: Backend, owner: Owner
) -> None:
    local = Buffer(ours, device, bytes(LENGTH))
    order = random.Random(1).sample(range(40), 40)
    ranges = [Range(i * 4096, page * 4096, 4096) for i, page in enumerate(order)]

    ours.read(local.region, owner.descriptor, ranges, SECONDS).wait(SECONDS)
    assert local.content == b"".join(pattern(4096, page * 4096) for page in order)

    content = random.Random(2).randbytes(LENGTH)
    local.fill(content)
    whole = [Range(0, 0, LENGTH)]
    ours.write(local.region, owner.descriptor, whole, SECONDS).wait(SECONDS)
    assert owner.hears("crc") == str(zlib.crc32(content))

    owner.process.kill()
    owner.process.wait()
    with pytest.raises(PeerLost):
        ours.read(local.region, owner.descriptor, whole, SECONDS).wait(SECONDS)


def test_a_region_can_be_closed_and_its_memory_freed_while_a_peer_has_it_open(
    device: Device, ours: Backend, owner: Owner
) -> None:
    local = Buffer(ours, device, bytes(LENGTH))
    ours.read(local.region, owner.descriptor, [Range(0, 0, LENGTH)], SECONDS).wait(SECONDS)

    assert owner.hears("close") == "freed"

    with pytest.raises(StaleDescriptor):
        ours.read(local.region, owner.descriptor, [Range(0, 0, LENGTH)], SECONDS).wait(SECONDS)
