"""Memory that somebody else allocated is moved like a backend's own; torch's KV cache is one."""

import ctypes
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest

from pdgate.transfer import registry
from pdgate.transfer.base import Backend, PeerLost, Range, StaleDescriptor
from pdgate.transfer.memory import Memory
from tests.support import waiting
from tests.support.kv_backends import BACKENDS, require
from tests.support.kv_owner import Owned, pattern

SECONDS = waiting.PATIENCE_SECONDS
PAGE = 4096


@pytest.fixture(params=BACKENDS)
def backends(request: pytest.FixtureRequest) -> Iterator[tuple[Backend, Backend]]:
    require(request.param)
    with (
        closing(registry.load(request.param)) as ours,
        closing(registry.load(request.param)) as theirs,
    ):
        yield ours, theirs


def as_view(buffer: bytearray) -> Memory:
    return memoryview(buffer)


def as_address(buffer: bytearray) -> Memory:
    return ctypes.addressof(ctypes.c_char.from_buffer(buffer)), len(buffer)


either_way = pytest.mark.parametrize("said", [as_view, as_address])


@either_way
def test_peers_read_and_write_it(
    backends: tuple[Backend, Backend], said: Callable[[bytearray], Memory]
) -> None:
    ours, theirs = backends
    buffer = bytearray(pattern(4 * PAGE))
    remote, local = theirs.register(said(buffer)), ours.allocate(4 * PAGE)
    assert buffer == pattern(4 * PAGE), "registering changes nothing"

    ours.read(local, remote.descriptor, [Range(0, PAGE, PAGE)], SECONDS).wait(SECONDS)
    arrival = theirs.expect(remote, 3, 1, SECONDS)
    back = [Range(0, 3 * PAGE, PAGE)]
    ours.write(local, remote.descriptor, back, SECONDS, immediate=3).wait(SECONDS)
    arrival.wait(SECONDS)

    assert bytes(local.memory[:PAGE]) == pattern(PAGE, PAGE)
    assert buffer == pattern(3 * PAGE) + pattern(PAGE, PAGE)


@either_way
def test_it_is_a_local_side_too(
    backends: tuple[Backend, Backend], said: Callable[[bytearray], Memory]
) -> None:
    ours, theirs = backends
    buffer = bytearray(3 * PAGE)
    local, remote = ours.register(said(buffer)), theirs.register(memoryview(bytearray(PAGE)))
    remote.memory[:] = pattern(PAGE)

    ranges = [Range(PAGE + 100 * i, 10 * i, 10) for i in range(30)]
    ours.read(local, remote.descriptor, ranges, SECONDS).wait(SECONDS)

    expected = bytearray(3 * PAGE)
    for one in ranges:
        expected[one.local : one.local + 10] = pattern(10, one.remote)
    assert buffer == expected


def test_closed_it_is_stale_and_stays_its_owners(backends: tuple[Backend, Backend]) -> None:
    ours, theirs = backends
    buffer = bytearray(pattern(PAGE))
    remote, local = theirs.register(memoryview(buffer)), ours.allocate(PAGE)
    ours.read(local, remote.descriptor, [Range(0, 0, 1)], SECONDS).wait(SECONDS)

    remote.close()

    with pytest.raises(StaleDescriptor):
        ours.write(local, remote.descriptor, [Range(0, 0, PAGE)], SECONDS).wait(SECONDS)
    assert buffer == pattern(PAGE)


def test_what_cannot_be_written_is_refused(backends: tuple[Backend, Backend]) -> None:
    ours, _ = backends

    for bad in (memoryview(b"constant"), memoryview(bytearray(8))[::2], (0, 8), (4096, -1)):
        with pytest.raises(ValueError, match="memory"):
            ours.register(bad)


@pytest.mark.parametrize("name", BACKENDS)
def test_it_is_reached_in_another_process_until_that_one_dies(name: str) -> None:
    require(name)
    length = 2 * PAGE
    with (
        closing(registry.load(name)) as ours,
        Owned(name, length, registered=True) as owner,
    ):
        local = ours.allocate(length)
        ours.read(local, owner.descriptor, [Range(0, 0, length)], SECONDS).wait(SECONDS)
        assert bytes(local.memory) == pattern(length)
        local.memory[:8] = b"written!"
        ours.write(local, owner.descriptor, [Range(0, PAGE, 8)], SECONDS).wait(SECONDS)
        ours.read(local, owner.descriptor, [Range(100, PAGE, 9)], SECONDS).wait(SECONDS)
        assert bytes(local.memory[100:109]) == b"written!" + pattern(1, PAGE + 8)

        owner.kill()

        with pytest.raises(PeerLost):
            ours.read(local, owner.descriptor, [Range(0, 0, 1)], SECONDS).wait(SECONDS)
