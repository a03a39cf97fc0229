"""What every device does, the fake one and a GPU alike; on_gpu.sh runs this file on the GPU."""

import math
from collections.abc import Iterator

import pytest

from pdgate.transfer.device.base import Device, DeviceError, DeviceEvent, wait
from pdgate.transfer.device.fake import FakeDevice
from pdgate.transfer.device.opening import open_device
from pdgate.transfer.device.staging import Staging, cut
from pdgate.transfer.runtime.running import TransferInterrupted
from tests.support.kv_devices import a_device
from tests.support.kv_owner import pattern

PAGE = 4096


@pytest.fixture
def device() -> Iterator[Device]:
    with a_device() as found:
        yield found


def test_memory_starts_zeroed_and_keeps_what_is_put(device: Device) -> None:
    memory = device.allocate(2 * PAGE)
    device.put(memory.address + 10, b"pages")

    assert device.get(memory.address, 20) == bytes(10) + b"pages" + bytes(5)
    device.free(memory)


def test_pieces_are_gathered_and_scattered_in_their_order(device: Device) -> None:
    memory, buffer, stream = device.allocate(8 * PAGE), device.pinned(3 * PAGE), device.stream()
    device.put(memory.address, pattern(8 * PAGE))
    pieces = [(memory.address + page * PAGE, PAGE) for page in (5, 0, 2)]

    device.gather(stream, buffer.view, pieces)
    stream.synchronize()
    assert bytes(buffer.view) == b"".join(pattern(PAGE, page * PAGE) for page in (5, 0, 2))

    device.scatter(stream, buffer.view, [(memory.address + n * PAGE, PAGE) for n in range(3)])
    stream.synchronize()
    assert device.get(memory.address, 3 * PAGE) == bytes(buffer.view)


def test_copies_stay_on_the_device(device: Device) -> None:
    memory, stream = device.allocate(4 * PAGE), device.stream()
    device.put(memory.address, pattern(PAGE))
    at = memory.address

    device.copy(stream, [(at + 3 * PAGE, at, PAGE), (at + PAGE, at, 7)])
    stream.synchronize()

    assert device.get(at + PAGE, PAGE) == pattern(7) + bytes(PAGE - 7)
    assert device.get(at + 3 * PAGE, PAGE) == pattern(PAGE)


def test_an_event_has_happened_when_what_came_before_it_has(device: Device) -> None:
    memory, buffer, stream = device.allocate(PAGE), device.pinned(PAGE), device.stream()
    buffer.view[:] = pattern(PAGE)
    device.to_device(stream, memory.address, buffer.view)

    assert wait(stream.record(), math.inf, lambda: False)
    assert device.get(memory.address, PAGE) == pattern(PAGE)


@pytest.mark.parametrize("size", [100, 4096, 6000])
def test_a_lane_carries_more_than_its_buffers_hold(device: Device, size: int) -> None:
    memory, staging = device.allocate(64 * PAGE), Staging(device, 1, size)
    device.put(memory.address, pattern(64 * PAGE))
    ranges = [(memory.address + page * PAGE, 3000) for page in (60, 1, 2, 30)]

    with staging.taken(lambda: False) as lane:
        came = b"".join(bytes(view) for view in lane.out(cut(ranges, size)))
    assert came == b"".join(pattern(3000, page * PAGE) for page in (60, 1, 2, 30))

    at = 0
    there = [(memory.address + page * PAGE, 3000) for page in (10, 11, 12, 13)]
    with staging.taken(lambda: False) as lane:
        for view in lane.into(cut(there, size)):
            view[:] = came[at : at + len(view)]
            at += len(view)
        # The last copies have been waited for: nothing else is asked of the device.
        landed = [device.get(start, length) for start, length in there]
    assert b"".join(landed) == came
    staging.close()


def test_no_more_is_pinned_than_the_pool_may(device: Device) -> None:
    staging = Staging(device, 1, PAGE)

    with staging.taken(lambda: False), pytest.raises(TransferInterrupted):  # noqa: SIM117
        with staging.taken(lambda: True):
            pytest.fail("there was a second lane")


def test_a_device_that_there_is_not_is_refused_in_one_sentence() -> None:
    with pytest.raises(LookupError, match="there are cuda:N"):
        open_device("tpu:0")


class Broken(DeviceEvent):
    """As PyTorch's when the GPU is gone."""

    def query(self) -> bool:
        raise RuntimeError("CUDA error: unspecified launch failure")

    def synchronize(self) -> None:
        raise RuntimeError


def test_an_event_that_raises_is_a_lost_device() -> None:
    with pytest.raises(DeviceError, match="unspecified launch failure"):
        wait(Broken(), math.inf, lambda: False)


# What only the fake does: it is no better than a GPU.


def test_on_the_fake_nothing_is_there_before_the_event() -> None:
    fake = FakeDevice()
    memory, buffer, stream = fake.allocate(PAGE), fake.pinned(PAGE), fake.stream()
    fake.put(memory.address, pattern(PAGE))

    fake.to_host(stream, memory.address, buffer.view)
    event = stream.record()
    assert not any(buffer.view)

    event.synchronize()
    assert bytes(buffer.view) == pattern(PAGE)


def test_on_the_fake_streams_overtake_each_other() -> None:
    fake = FakeDevice(seed=1)
    first, second = fake.stream(), fake.stream()
    order: list[str] = []
    buffer = fake.pinned(1)
    memory = fake.allocate(1)
    for _ in range(8):
        fake.to_host(first, memory.address, buffer.view)
    early, late = first.record(), second.record()

    while not (early.happened and late.happened):
        early.query()
        for name, event in (("early", early), ("late", late)):
            if event.happened and name not in order:
                order.append(name)

    assert order == ["late", "early"]


def test_a_fake_that_is_lost_says_so_for_ever() -> None:
    fake = FakeDevice()
    stream = fake.stream()
    event = stream.record()
    fake.lose()

    with pytest.raises(DeviceError, match="fake:0 is lost"):
        wait(event, math.inf, lambda: False)
    with pytest.raises(DeviceError):
        fake.stream()
