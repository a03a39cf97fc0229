"""A device's memory between two processes, as on a GPU: on_gpu.sh runs this file on one."""

import random
import zlib
from collections.abc import Iterator
from contextlib import closing

import pytest

from pdgate.transfer import registry
from pdgate.transfer.base import Backend, PeerLost, Range, StaleDescriptor
from pdgate.transfer.device.base import Device
from tests.support import waiting
from tests.support.kv_devices import DEVICE, Buffer, a_device
from tests.support.kv_owner import pattern
from tests.support.kv_owner_on_device import OwnedOnDevice

SECONDS = waiting.PATIENCE_SECONDS
LENGTH = 40 * 4096


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
def owner(name: str) -> Iterator[OwnedOnDevice]:
    with OwnedOnDevice(name, DEVICE, LENGTH) as made:
        yield made


def test_pages_go_both_ways_and_a_dead_owner_is_noticed(
    device: Device, ours: Backend, owner: OwnedOnDevice
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
    assert owner.do("crc") == str(zlib.crc32(content))

    owner.kill()
    with pytest.raises(PeerLost):
        ours.read(local.region, owner.descriptor, whole, SECONDS).wait(SECONDS)


def test_a_region_can_be_closed_and_its_memory_freed_while_a_peer_has_it_open(
    device: Device, ours: Backend, owner: OwnedOnDevice
) -> None:
    local = Buffer(ours, device, bytes(LENGTH))
    ours.read(local.region, owner.descriptor, [Range(0, 0, LENGTH)], SECONDS).wait(SECONDS)

    assert owner.do("close") == "freed"

    with pytest.raises(StaleDescriptor):
        ours.read(local.region, owner.descriptor, [Range(0, 0, LENGTH)], SECONDS).wait(SECONDS)
