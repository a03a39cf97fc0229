"""What a backend has to keep where memory is a device's, on either side or on both.

The owner is in this process, which a GPU's IPC does not allow: so these are the fake's, and
test_two_processes.py is everybody's.
"""

import queue
import random
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace

import pytest

from pdgate.transfer import registry
from pdgate.transfer.base import (
    Backend,
    Forbidden,
    Op,
    OutOfBounds,
    Range,
    Region,
    StaleDescriptor,
    State,
    TransferError,
)
from pdgate.transfer.device.fake import FakeDevice
from pdgate.transfer.device.staging import BUFFER_BYTES
from pdgate.transfer.memory import DeviceMemory
from pdgate.transfer.parts import Stretch
from tests.support import waiting
from tests.support.kv_devices import Buffer
from tests.support.kv_devices import replace as replace_device
from tests.support.kv_owner import pattern

SECONDS = waiting.PATIENCE_SECONDS
PAGE = 4096
STAGED = ["tcp", "shm"]
ALL = [*STAGED, "cuda-ipc"]


@pytest.fixture
def device() -> FakeDevice:
    fake = FakeDevice()
    replace_device(fake)
    return fake


@pytest.fixture(params=ALL)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def ours(name: str) -> Iterator[Backend]:
    with closing(registry.load(name)) as backend:
        yield backend


@pytest.fixture
def theirs(name: str) -> Iterator[Backend]:
    with closing(registry.load(name)) as backend:
        yield backend


def move(backend: Backend, op: Op, local: Region, remote: Region, ranges: list[Range]) -> None:
    work = backend.read if op is Op.READ else backend.write
    work(local, remote.descriptor, ranges, SECONDS).wait(SECONDS)


@pytest.mark.parametrize("op", Op)
def test_scattered_pages_arrive_where_they_belong(
    op: Op, device: FakeDevice, ours: Backend, theirs: Backend
) -> None:
    pages, content = 300, random.Random(1).randbytes(300 * 64)
    source, sink = (theirs, ours) if op is Op.READ else (ours, theirs)
    full, empty = Buffer(source, device, content), Buffer(sink, device, bytes(len(content)))
    order = random.Random(2).sample(range(pages), pages)
    order[50:90] = sorted(order[50:90])
    local, remote = (empty, full) if op is Op.READ else (full, empty)
    ranges = [
        Range(i * 64, page * 64, 64) if op is Op.READ else Range(page * 64, i * 64, 64)
        for i, page in enumerate(order)
    ]

    move(ours, op, local.region, remote.region, ranges)

    assert empty.content == b"".join(content[page * 64 : page * 64 + 64] for page in order)


@pytest.mark.parametrize("op", Op)
@pytest.mark.parametrize("here", ["host", "registered", "device"])
@pytest.mark.parametrize("there", ["host", "registered", "device"])
@pytest.mark.parametrize("name", STAGED, indirect=True)
def test_any_memory_meets_any_other_and_more_than_the_buffers_hold(
    op: Op, here: str, there: str, device: FakeDevice, ours: Backend, theirs: Backend
) -> None:
    length = 2 * BUFFER_BYTES + 12345
    content = random.Random(3).randbytes(length)
    full_here = op is Op.WRITE

    def made(backend: Backend, place: str, full: bool) -> tuple[Region, Buffer | None]:
        wanted = content if full else bytes(length)
        if place == "device":
            buffer = Buffer(backend, device, wanted)
            return buffer.region, buffer
        if place == "registered":
            return backend.register(memoryview(bytearray(wanted))), None
        region = backend.allocate(length)
        region.memory[:] = wanted
        return region, None

    local, local_buffer = made(ours, here, full_here)
    remote, remote_buffer = made(theirs, there, not full_here)

    move(ours, op, local, remote, [Range(0, 0, length)])

    region, buffer = (remote, remote_buffer) if full_here else (local, local_buffer)
    assert (bytes(region.memory) if buffer is None else buffer.content) == content


def test_a_counted_write_is_on_the_device_when_it_counts(
    device: FakeDevice, ours: Backend, theirs: Backend
) -> None:
    """Read by the device at once: on the fake, a copy that was not waited for is not there."""
    local = Buffer(ours, device, pattern(3 * PAGE))
    remote = Buffer(theirs, device, bytes(3 * PAGE))
    stale: queue.Queue[bool] = queue.Queue()
    arrival = theirs.expect(remote.region, 7, 3, SECONDS)
    arrival.add_done_callback(lambda _: stale.put(_raw(device, remote) != pattern(3 * PAGE)))

    for page in range(3):
        at = page * PAGE
        ours.write(local.region, remote.region.descriptor, [Range(at, at, PAGE)], SECONDS, 7)

    arrival.wait(SECONDS)
    assert not stale.get(timeout=SECONDS)


def _raw(device: FakeDevice, buffer: Buffer) -> bytes:
    """What is in the memory at this moment, without anything happening meanwhile."""
    return device.now(buffer.memory)


def test_a_write_of_nothing_counts(device: FakeDevice, ours: Backend, theirs: Backend) -> None:
    local, remote = Buffer(ours, device, bytes(PAGE)), Buffer(theirs, device, bytes(PAGE))

    ours.write(local.region, remote.region.descriptor, [], SECONDS, immediate=3).wait(SECONDS)

    theirs.expect(remote.region, 3, 1, SECONDS).wait(SECONDS)


def test_several_peers_at_once(name: str, device: FakeDevice, theirs: Backend) -> None:
    remote = Buffer(theirs, device, pattern(64 * PAGE))
    readers = [registry.load(name) for _ in range(3)]
    try:
        locals_ = [Buffer(reader, device, bytes(64 * PAGE)) for reader in readers]
        transfers = [
            reader.read(local.region, remote.region.descriptor, [Range(0, 0, 64 * PAGE)], SECONDS)
            for reader, local in zip(readers, locals_, strict=True)
            for _ in range(4)
        ]
        for transfer in transfers:
            transfer.wait(SECONDS)
        assert all(local.content == pattern(64 * PAGE) for local in locals_)
    finally:
        for reader in readers:
            reader.close()


def test_two_that_write_to_each_other_do_not_wait_for_each_others_buffers(
    device: FakeDevice,
) -> None:
    """Twelve transfers each way, and four lanes on each side for what it moves and what it serves."""
    length = 1 << 20
    with closing(registry.load("tcp")) as one, closing(registry.load("tcp")) as other:
        first, second = Buffer(one, device, bytes(length)), Buffer(other, device, bytes(length))
        transfers = []
        for _ in range(12):
            for backend, mine, its in ((one, first, second), (other, second, first)):
                whole, there = [Range(0, 0, length)], its.region.descriptor
                transfers.append(backend.write(mine.region, there, whole, SECONDS))
                transfers.append(backend.read(mine.region, there, whole, SECONDS))
        for transfer in transfers:
            transfer.wait(SECONDS)


def test_bounds_hold_for_a_descriptor_that_lies(
    name: str, device: FakeDevice, ours: Backend, theirs: Backend
) -> None:
    local, remote = Buffer(ours, device, bytes(4 * PAGE)), Buffer(theirs, device, bytes(PAGE))
    with pytest.raises(OutOfBounds):
        ours.read(local.region, remote.region.descriptor, [Range(0, PAGE, 1)], SECONDS)
    lie = replace(remote.region.descriptor, length=4 * PAGE)

    with pytest.raises(TransferError):
        ours.read(local.region, lie, [Range(0, PAGE, PAGE)], SECONDS).wait(SECONDS)


def test_a_closed_region_is_stale(device: FakeDevice, ours: Backend, theirs: Backend) -> None:
    local, remote = Buffer(ours, device, bytes(PAGE)), Buffer(theirs, device, bytes(PAGE))
    move(ours, Op.READ, local.region, remote.region, [Range(0, 0, 1)])
    remote.region.close()
    device.free(remote.memory)

    with pytest.raises(StaleDescriptor):
        move(ours, Op.READ, local.region, remote.region, [Range(0, 0, 1)])
    # It comes back under another epoch, and the link to the first one is not taken for it.
    again = Buffer(theirs, device, pattern(PAGE))
    move(ours, Op.READ, local.region, again.region, [Range(0, 0, PAGE)])
    assert local.content == pattern(PAGE)


@pytest.mark.parametrize("name", STAGED, indirect=True)
def test_a_grant_lets_in_what_it_says_and_no_longer_than_it_lasts(
    name: str, device: FakeDevice, ours: Backend, theirs: Backend
) -> None:
    local, remote = Buffer(ours, device, pattern(2 * PAGE)), Buffer(theirs, device, bytes(2 * PAGE))
    grant = remote.region.grant("", Op.WRITE, Stretch(0, PAGE), SECONDS, range(5, 6))
    there = grant.descriptor

    ours.write(local.region, there, [Range(0, 0, PAGE)], SECONDS, 5).wait(SECONDS)
    for ranges, immediate in (([Range(0, PAGE, 1)], 5), ([Range(0, 0, 1)], 6)):
        with pytest.raises(Forbidden):
            ours.write(local.region, there, ranges, SECONDS, immediate).wait(SECONDS)
    with pytest.raises(Forbidden):
        ours.read(local.region, there, [Range(0, 0, 1)], SECONDS).wait(SECONDS)
    grant.revoke()
    with pytest.raises(StaleDescriptor):
        ours.write(local.region, there, [Range(0, 0, 1)], SECONDS, 5).wait(SECONDS)
    assert remote.content == pattern(PAGE) + bytes(PAGE)


def test_a_device_that_is_lost_fails_its_transfers_and_nothing_else(
    name: str, device: FakeDevice, ours: Backend, theirs: Backend
) -> None:
    local, remote = Buffer(ours, device, bytes(PAGE)), Buffer(theirs, device, bytes(PAGE))
    mine, its = ours.allocate(PAGE), theirs.allocate(PAGE)
    move(ours, Op.READ, local.region, remote.region, [Range(0, 0, PAGE)])

    device.lose()

    with pytest.raises(TransferError, match=r"fake:0|broken|hung up"):
        move(ours, Op.READ, local.region, remote.region, [Range(0, 0, PAGE)])
    move(ours, Op.READ, mine, its, [Range(0, 0, PAGE)])


def test_memory_of_no_device_is_refused_when_it_is_registered(ours: Backend) -> None:
    with pytest.raises(TransferError, match=r"libcuda|no cuda:0 here"):
        ours.register(DeviceMemory("cuda:0", 4096, 4096))
    with pytest.raises(TransferError, match="moves cuda and fake and host memory: tpu:0 here"):
        ours.register(DeviceMemory("tpu:0", 4096, 4096))


def test_a_pair_that_cannot_is_refused_with_both_sides_names(device: FakeDevice) -> None:
    with closing(registry.load("cuda-ipc")) as ours, closing(registry.load("cuda-ipc")) as theirs:
        local, remote = Buffer(ours, device, bytes(PAGE)), theirs.allocate(PAGE)

        with pytest.raises(TransferError, match="fake:0 here, host there"):
            ours.read(local.region, remote.descriptor, [Range(0, 0, 1)], SECONDS)


def test_an_allocation_that_cannot_be_shared_is_refused_at_the_start(device: FakeDevice) -> None:
    with closing(registry.load("cuda-ipc")) as ours, pytest.raises(TransferError, match="shared"):
        ours.register(device.allocate(PAGE, "nothing"))


@pytest.mark.parametrize("by", ["handle", "fd"])
def test_memory_in_the_middle_of_an_allocation_is_opened_at_its_place(
    by: str, device: FakeDevice
) -> None:
    """As PyTorch's caching allocator hands it out."""
    with closing(registry.load("cuda-ipc")) as ours, closing(registry.load("cuda-ipc")) as theirs:
        whole = device.allocate(8 * PAGE, "handle" if by == "handle" else "fd")
        device.put(whole.address, pattern(8 * PAGE))
        part = theirs.register(DeviceMemory("fake:0", whole.address + 3 * PAGE, 2 * PAGE))
        local = Buffer(ours, device, bytes(2 * PAGE))

        ours.read(local.region, part.descriptor, [Range(0, 0, 2 * PAGE)], SECONDS).wait(SECONDS)

        assert local.content == pattern(2 * PAGE, 3 * PAGE)


def test_who_opened_an_allocation_closes_it_before_its_owner_may_free_it(
    device: FakeDevice,
) -> None:
    with closing(registry.load("cuda-ipc")) as ours, closing(registry.load("cuda-ipc")) as theirs:
        local, remote = Buffer(ours, device, bytes(PAGE)), Buffer(theirs, device, bytes(PAGE))
        move(ours, Op.READ, local.region, remote.region, [Range(0, 0, PAGE)])
        assert device.allocated == 3

        remote.region.close()

        assert device.allocated == 2


def test_a_transfer_that_is_over_reads_and_writes_no_page_any_more(
    name: str, device: FakeDevice, ours: Backend, theirs: Backend
) -> None:
    """Cancelled at once, it settles only when its copies have ended."""
    length = 3 * BUFFER_BYTES
    local, remote = Buffer(ours, device, pattern(251) * (length // 251 + 1)), None
    remote = Buffer(theirs, device, bytes(local.memory.length))
    for _ in range(5):
        transfer = ours.write(
            local.region, remote.region.descriptor, [Range(0, 0, length)], SECONDS
        )
        transfer.cancel()
        assert transfer.settle(SECONDS)
        assert transfer.state in (State.CANCELLED, State.DONE)
        if name != "tcp":
            # Nothing of ours is left in any stream. (tcp's owner may still drain the socket.)
            assert device.idle
    assert threading.active_count() < 100
