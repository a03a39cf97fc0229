"""What every transfer backend has to keep, whatever memory it moves; a new one is added to BACKENDS in kv_backends.py."""

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any, NamedTuple

import pytest

from pdgate.transfer import registry
from pdgate.transfer.base import (
    Backend,
    Descriptor,
    Op,
    OutOfBounds,
    PeerLost,
    Range,
    Region,
    StaleDescriptor,
    State,
    Transfer,
    TransferError,
)
from pdgate.transfer.parts import Stretch
from tests.support import waiting
from tests.support.kv_backends import BACKENDS, require
from tests.support.kv_memory_kinds import FAKE, HOST, Load, loading
from tests.support.kv_owner import Owned, pattern
from tests.support.kv_owner_on_device import OwnedOnDevice

SECONDS = waiting.PATIENCE_SECONDS
PAGE = 4096


ON_DEVICE = [
    "tcp",
    pytest.param("shm", marks=pytest.mark.matrix),
    pytest.param("cuda-ipc", marks=pytest.mark.matrix),
]
"""Those that move a fake device's memory; all of them in `make matrix`."""


class Case(NamedTuple):
    """A backend, and the kind of memory on both sides."""

    backend: str
    kind: str

    def __str__(self) -> str:
        return self.backend if self.kind == HOST else f"{self.backend}-{self.kind}"


def cases() -> Iterator[Any]:
    named: list[tuple[str, Any]] = [(HOST, one) for one in BACKENDS]
    named += [(FAKE, one) for one in ON_DEVICE]
    for kind, backend in named:
        if isinstance(backend, str):
            yield pytest.param(Case(backend, kind))
        else:
            yield pytest.param(Case(str(backend.values[0]), kind), marks=backend.marks)


@pytest.fixture(params=list(cases()), ids=str)
def case(request: pytest.FixtureRequest) -> Case:
    found: Case = request.param
    require(found.backend)
    return found


@pytest.fixture
def name(case: Case) -> str:
    return case.backend


@pytest.fixture
def load(case: Case) -> Load:
    """Opens a backend whose memory is of that kind."""
    return loading(case.backend, case.kind)


@pytest.fixture
def owned(case: Case) -> Callable[[], Owned | OwnedOnDevice]:
    """Starts a process that owns a page."""
    if case.kind == HOST:
        return lambda: Owned(case.backend, PAGE)
    return lambda: OwnedOnDevice(case.backend, "fake:0", PAGE)


@pytest.fixture
def ours(load: Load) -> Iterator[Backend]:
    with closing(load()) as backend:
        yield backend


@pytest.fixture
def theirs(load: Load) -> Iterator[Backend]:
    with closing(load()) as backend:
        yield backend


def filled(backend: Backend, length: int) -> Region:
    region = backend.allocate(length)
    region.memory[:] = pattern(length)
    return region


def state(transfer: Transfer) -> State:
    """Read anew: mypy believes that an attribute stays what it was."""
    return transfer.state


def dialled(descriptor: Descriptor) -> dict[str, Any]:
    """Where a peer looks for it; the window of a device's memory is new in each life."""
    return {key: value for key, value in descriptor.address.items() if key != "window"}


def same_address(name: str, load: Load) -> Callable[[], Backend]:
    """Makes backends of one address, one after the other."""
    options: dict[str, Any] = {"socket_name": f"pdgate-test-{random.getrandbits(64):x}"}
    if name not in ("shm", "cuda-ipc"):
        with closing(load()) as probe, closing(probe.allocate(1)) as region:
            options = {"port": region.descriptor.address["port"]}
    return lambda: load(**options)


def test_an_engine_says_where_to_listen_whatever_the_backend(load: Load, ours: Backend) -> None:
    with closing(load(host="127.0.0.1", advertise="localhost")) as owner:
        remote, local = filled(owner, PAGE), ours.allocate(PAGE)

        ours.read(local, remote.descriptor, [Range(0, 0, PAGE)], SECONDS).wait(SECONDS)

        assert local.memory == remote.memory


def test_memory_starts_zeroed(ours: Backend) -> None:
    assert bytes(ours.allocate(PAGE).memory) == bytes(PAGE)


def test_a_read_brings_the_peers_bytes(ours: Backend, theirs: Backend) -> None:
    remote = filled(theirs, 8 * PAGE)
    local = ours.allocate(PAGE)

    ours.read(local, remote.descriptor, [Range(100, 5000, 300)], SECONDS).wait(SECONDS)

    assert bytes(local.memory[100:400]) == pattern(300, 5000)
    assert not any(local.memory[:100])
    assert not any(local.memory[400:])


def test_a_write_lands_at_the_peer_and_nowhere_else(ours: Backend, theirs: Backend) -> None:
    remote = theirs.allocate(4 * PAGE)
    local = filled(ours, PAGE)

    ours.write(local, remote.descriptor, [Range(7, PAGE, 1000)], SECONDS).wait(SECONDS)

    assert bytes(remote.memory[PAGE : PAGE + 1000]) == pattern(1000, 7)
    assert not any(remote.memory[:PAGE])
    assert not any(remote.memory[PAGE + 1000 :])


def test_many_scattered_ranges_all_arrive_where_they_belong(ours: Backend, theirs: Backend) -> None:
    """More than one system call takes, some of them neighbours, so that merging is seen."""
    pages = 3000
    remote, local = theirs.allocate(pages * 64), ours.allocate(pages * 64)
    content = random.Random(1).randbytes(pages * 64)
    remote.memory[:] = content
    order = random.Random(2).sample(range(pages), pages)
    order[500:900] = sorted(order[500:900])
    order[0:200], order[200:400] = sorted(order[0:200]), order[200:400]
    ranges = [Range(i * 64, page * 64, 64) for i, page in enumerate(order)]

    ours.read(local, remote.descriptor, ranges, SECONDS).wait(SECONDS)

    expected = b"".join(content[page * 64 : page * 64 + 64] for page in order)
    assert bytes(local.memory) == expected


def test_large_transfers_arrive_whole(ours: Backend, theirs: Backend) -> None:
    length = 20 << 20
    remote, local = theirs.allocate(length), ours.allocate(length)
    remote.memory[:] = random.Random(3).randbytes(length)

    ours.read(local, remote.descriptor, [Range(0, 0, length)], SECONDS).wait(SECONDS)

    assert local.memory == remote.memory


def test_no_ranges_are_a_transfer_too(ours: Backend, theirs: Backend) -> None:
    remote = theirs.allocate(PAGE)

    transfer = ours.read(ours.allocate(PAGE), remote.descriptor, [], SECONDS)
    transfer.wait(SECONDS)

    assert transfer.state is State.DONE
    assert transfer.settled


def test_several_peers_read_at_once(load: Load, theirs: Backend) -> None:
    remote = filled(theirs, 64 * PAGE)
    readers = [load() for _ in range(4)]
    try:
        locals_ = [reader.allocate(64 * PAGE) for reader in readers]
        transfers = [
            reader.read(local, remote.descriptor, [Range(0, 0, 64 * PAGE)], SECONDS)
            for reader, local in zip(readers, locals_, strict=True)
            for _ in range(5)
        ]
        for transfer in transfers:
            transfer.wait(SECONDS)
        assert all(local.memory == remote.memory for local in locals_)
    finally:
        for reader in readers:
            reader.close()


def test_a_range_outside_our_memory_is_refused(ours: Backend, theirs: Backend) -> None:
    remote, local = theirs.allocate(2 * PAGE), ours.allocate(PAGE)

    for bad in (Range(1, 0, PAGE), Range(-1, 0, 1), Range(0, 0, -1)):
        with pytest.raises(OutOfBounds):
            ours.read(local, remote.descriptor, [bad], SECONDS)


def test_a_range_outside_the_peers_memory_is_refused(ours: Backend, theirs: Backend) -> None:
    remote, local = theirs.allocate(PAGE), ours.allocate(2 * PAGE)

    for bad in (Range(0, PAGE, 1), Range(0, -1, 1)):
        with pytest.raises(OutOfBounds):
            ours.read(local, remote.descriptor, [bad], SECONDS)


def test_the_owner_does_not_believe_a_descriptor_that_lies(ours: Backend, theirs: Backend) -> None:
    """A peer that claims a longer region than there is reads nothing."""
    remote, local = theirs.allocate(PAGE), ours.allocate(2 * PAGE)
    lie = replace(remote.descriptor, length=2 * PAGE)

    with pytest.raises(TransferError):
        ours.read(local, lie, [Range(0, PAGE, PAGE)], SECONDS).wait(SECONDS)


def test_memory_of_another_backend_is_refused(name: str, ours: Backend) -> None:
    other = "shm" if name != "shm" else "tcp"
    with closing(registry.load(other)) as backend:
        foreign = backend.allocate(PAGE).descriptor

        with pytest.raises(TransferError):
            ours.read(ours.allocate(PAGE), foreign, [Range(0, 0, 1)], SECONDS)


def test_a_region_of_another_backend_is_not_ours_to_move(
    name: str, ours: Backend, theirs: Backend
) -> None:
    remote = theirs.allocate(PAGE).descriptor
    with closing(registry.load("shm" if name != "shm" else "tcp")) as backend:
        foreign = backend.allocate(PAGE)

        with pytest.raises(TypeError):
            ours.write(foreign, remote, [Range(0, 0, 1)], SECONDS)
        with pytest.raises(TypeError):
            ours.expect(foreign, 1, 1, SECONDS)


def test_a_write_counts_once_however_many_ranges_it_has(ours: Backend, theirs: Backend) -> None:
    remote, local = theirs.allocate(8 * PAGE), ours.allocate(8 * PAGE)
    scattered = [Range(i * PAGE, (7 - i) * PAGE, PAGE) for i in range(8)]

    ours.write(local, remote.descriptor, scattered, SECONDS, immediate=4).wait(SECONDS)

    theirs.expect(remote, 4, 1, SECONDS).wait(SECONDS)
    second = theirs.expect(remote, 4, 1, SECONDS)
    assert state(second) is State.RUNNING
    second.cancel()


def test_a_closed_region_is_stale(ours: Backend, theirs: Backend) -> None:
    remote, local = filled(theirs, PAGE), ours.allocate(PAGE)
    ours.read(local, remote.descriptor, [Range(0, 0, 1)], SECONDS).wait(SECONDS)

    remote.close()

    with pytest.raises(StaleDescriptor):
        ours.read(local, remote.descriptor, [Range(0, 0, 1)], SECONDS).wait(SECONDS)


def test_another_region_of_the_same_owner_is_not_read_by_an_old_descriptor(
    ours: Backend, theirs: Backend
) -> None:
    old = filled(theirs, PAGE)
    old.close()
    new, local = filled(theirs, PAGE), ours.allocate(PAGE)

    with pytest.raises(StaleDescriptor):
        ours.read(local, old.descriptor, [Range(0, 0, PAGE)], SECONDS).wait(SECONDS)

    assert not any(local.memory)
    ours.read(local, new.descriptor, [Range(0, 0, PAGE)], SECONDS).wait(SECONDS)


def test_a_descriptor_does_not_survive_the_restart_of_its_owner(
    name: str, load: Load, ours: Backend
) -> None:
    start = same_address(name, load)
    local = ours.allocate(PAGE)
    with closing(start()) as first:
        stale = filled(first, PAGE).descriptor
        ours.read(local, stale, [Range(0, 0, 1)], SECONDS).wait(SECONDS)

    with closing(start()) as second:
        fresh = filled(second, PAGE).descriptor
        assert dialled(fresh) == dialled(stale)
        # The connection to the first life may be noticed as lost before the epoch is.
        with pytest.raises((StaleDescriptor, PeerLost)):
            ours.read(local, stale, [Range(0, 0, PAGE)], SECONDS).wait(SECONDS)
        with pytest.raises(StaleDescriptor):
            ours.read(local, stale, [Range(0, 0, PAGE)], SECONDS).wait(SECONDS)
        ours.read(local, fresh, [Range(0, 0, PAGE)], SECONDS).wait(SECONDS)

    assert bytes(local.memory) == pattern(PAGE)


def test_nobody_at_the_address_is_a_lost_peer(load: Load, ours: Backend) -> None:
    with closing(load()) as gone:
        descriptor = gone.allocate(PAGE).descriptor

    with pytest.raises(PeerLost):
        ours.read(ours.allocate(PAGE), descriptor, [Range(0, 0, 1)], SECONDS).wait(SECONDS)


def test_a_peer_killed_in_the_middle_ends_the_transfer(
    owned: Callable[[], Owned | OwnedOnDevice], ours: Backend
) -> None:
    """Frozen first, so that the transfer is surely under way when the peer dies."""
    with owned() as owner:
        owner.freeze()
        transfer = ours.read(ours.allocate(PAGE), owner.descriptor, [Range(0, 0, PAGE)], 60)
        assert not transfer.settle(0.2)
        assert state(transfer) is State.RUNNING

        owner.kill()

        with pytest.raises(PeerLost):
            transfer.wait(SECONDS)
        assert state(transfer) is State.FAILED
        assert transfer.settled


def test_a_peer_killed_between_transfers_is_noticed(
    owned: Callable[[], Owned | OwnedOnDevice], ours: Backend
) -> None:
    local = ours.allocate(PAGE)
    with owned() as owner:
        ours.read(local, owner.descriptor, [Range(0, 0, PAGE)], SECONDS).wait(SECONDS)
        assert bytes(local.memory) == pattern(PAGE)

        owner.kill()

        with pytest.raises(PeerLost):
            ours.read(local, owner.descriptor, [Range(0, 0, PAGE)], SECONDS).wait(SECONDS)


@pytest.mark.parametrize("stop", ["cancel", "deadline", "wait"])
def test_who_gives_up_on_a_hung_peer_gets_the_memory_back(
    owned: Callable[[], Owned | OwnedOnDevice], stop: str, ours: Backend
) -> None:
    with owned() as owner:
        owner.freeze()
        deadline_seconds = 0.1 if stop == "deadline" else 60.0
        local = ours.allocate(PAGE)
        transfer = ours.read(local, owner.descriptor, [Range(0, 0, PAGE)], deadline_seconds)
        if stop == "cancel":
            transfer.cancel()

        with pytest.raises(TransferError):
            transfer.wait(0.1 if stop == "wait" else SECONDS)

        assert transfer.state is (State.CANCELLED if stop == "cancel" else State.TIMED_OUT)
        assert transfer.settle(SECONDS)


def test_a_transfer_ends_once(ours: Backend, theirs: Backend) -> None:
    remote, local = theirs.allocate(PAGE), ours.allocate(PAGE)
    transfer = ours.read(local, remote.descriptor, [Range(0, 0, 1)], SECONDS)
    ends: list[Transfer] = []
    transfer.add_done_callback(ends.append)
    transfer.wait(SECONDS)

    transfer.cancel()
    transfer.add_done_callback(ends.append)

    assert transfer.state is State.DONE
    assert transfer.error is None
    assert ends == [transfer, transfer]


@pytest.mark.parametrize("expected_first", [True, False])
def test_counted_writes_are_awaited_whenever_the_waiting_began(
    expected_first: bool, ours: Backend, theirs: Backend
) -> None:
    remote, local = theirs.allocate(3 * PAGE), filled(ours, 3 * PAGE)

    def write() -> None:
        for page in (2, 0, 1):
            at = page * PAGE
            transfer = ours.write(
                local, remote.descriptor, [Range(at, at, PAGE)], SECONDS, immediate=2**32 - 1
            )
            transfer.wait(SECONDS)

    if not expected_first:
        write()
    arrival = theirs.expect(remote, 2**32 - 1, 3, SECONDS)
    if expected_first:
        assert arrival.state is State.RUNNING
        write()

    arrival.wait(SECONDS)
    assert bytes(remote.memory) == pattern(3 * PAGE)


def test_what_is_counted_is_the_immediate(ours: Backend, theirs: Backend) -> None:
    remote, local = theirs.allocate(PAGE), ours.allocate(PAGE)
    for immediate in (1, None, 0):
        ours.write(local, remote.descriptor, [Range(0, 0, 1)], SECONDS, immediate).wait(SECONDS)

    theirs.expect(remote, 1, 1, SECONDS).wait(SECONDS)
    theirs.expect(remote, 0, 1, SECONDS).wait(SECONDS)

    with pytest.raises(TransferError):
        theirs.expect(remote, 1, 1, SECONDS).wait(0.05)


def test_what_has_landed_counts_for_nobody_when_its_grant_is_over(
    ours: Backend, theirs: Backend
) -> None:
    """Who is granted something else may have the immediate again, and the count would be there for good."""
    remote, local = theirs.allocate(PAGE), ours.allocate(PAGE)
    grant = remote.grant("", Op.WRITE, Stretch(0, PAGE), SECONDS, range(3, 5))
    for immediate in (3, 4):
        transfer = ours.write(local, grant.descriptor, [Range(0, 0, 1)], SECONDS, immediate)
        transfer.wait(SECONDS)
    theirs.expect(remote, 4, 1, SECONDS).wait(SECONDS)

    grant.revoke()

    with pytest.raises(TransferError):
        theirs.expect(remote, 3, 1, SECONDS).wait(0.05)


def test_a_write_of_nothing_is_counted_too(ours: Backend, theirs: Backend) -> None:
    remote, local = theirs.allocate(PAGE), ours.allocate(PAGE)

    ours.write(local, remote.descriptor, [], SECONDS, immediate=3).wait(SECONDS)

    theirs.expect(remote, 3, 1, SECONDS).wait(SECONDS)


def test_an_expectation_has_a_deadline(theirs: Backend) -> None:
    arrival = theirs.expect(theirs.allocate(PAGE), 5, 1, 0.05)

    ended = threading.Event()
    arrival.add_done_callback(lambda _: ended.set())

    assert ended.wait(SECONDS)
    assert arrival.state is State.TIMED_OUT


def test_an_immediate_is_a_u32(ours: Backend, theirs: Backend) -> None:
    remote, local = theirs.allocate(PAGE), ours.allocate(PAGE)

    for bad in (-1, 2**32):
        with pytest.raises(OutOfBounds):
            ours.write(local, remote.descriptor, [], SECONDS, immediate=bad)
        with pytest.raises(OutOfBounds):
            ours.expect(local, bad, 1, SECONDS)


def test_closing_a_region_fails_who_waits_for_it(theirs: Backend) -> None:
    region = theirs.allocate(PAGE)
    arrival = theirs.expect(region, 1, 1, SECONDS)

    region.close()
    region.close()

    with pytest.raises(StaleDescriptor):
        arrival.wait(SECONDS)


def test_closing_the_backend_fails_everything_pending(
    owned: Callable[[], Owned | OwnedOnDevice], ours: Backend
) -> None:
    with owned() as owner:
        owner.freeze()
        local = ours.allocate(PAGE)
        transfer = ours.read(local, owner.descriptor, [Range(0, 0, PAGE)], 60)
        arrival = ours.expect(local, 1, 1, 60)

        ours.close()
        ours.close()

        for pending in (transfer, arrival):
            with pytest.raises(TransferError):
                pending.wait(SECONDS)
            assert pending.settled
    with pytest.raises(TransferError):
        ours.allocate(PAGE)
