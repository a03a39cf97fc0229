"""What holds for every library under an external-mover backend, whatever it does meanwhile."""

from collections.abc import Iterator
from contextlib import closing

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pdgate.transfer import memory as memories
from pdgate.transfer.base import Range, Region, StaleDescriptor, State, Transfer, TransferError
from pdgate.transfer.external_mover import regions as visit_regions
from pdgate.transfer.external_mover import wire
from pdgate.transfer.memory import DeviceMemory
from pdgate.transfer.runtime.channel import Channel
from tests.support.in_process import SECONDS, InProcessBackend
from tests.support.kv_owner import pattern
from tests.support.proven import pair, to_owner

PAGE = 4096
ALL = [Range(0, 0, PAGE)]


@pytest.fixture
def theirs() -> Iterator[InProcessBackend]:
    with closing(InProcessBackend()) as backend:
        yield backend


@pytest.fixture
def ours(theirs: InProcessBackend) -> Iterator[InProcessBackend]:
    """Ends before `theirs`, which waits for it."""
    with closing(InProcessBackend()) as backend:
        yield backend
        backend.library.go_on.set()


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Closed regions wait for those inside, but not long."""
    monkeypatch.setattr(visit_regions, "LEAVE_SECONDS", 0.05)


def filled(backend: InProcessBackend) -> Region:
    region = backend.allocate(PAGE)
    region.memory[:] = pattern(PAGE)
    return region


def held(ours: InProcessBackend, local: Region, remote: Region, immediate: int = 1) -> Transfer:
    """A write that the library has begun and does not end."""
    ours.library.go_on.clear()
    transfer = ours.write(local, remote.descriptor, ALL, SECONDS, immediate)
    assert ours.library.entered.wait(SECONDS)
    return transfer


def dial(remote: Region) -> Channel:
    return to_owner(remote, InProcessBackend.name)


def enter(sock: Channel, remote: Region) -> wire.MoverAnswer:
    epoch = bytes.fromhex(remote.descriptor.epoch)
    wire.send_request(sock, wire.MoverRequest(wire.MoverWord.ENTER, epoch))
    return wire.receive_answer(sock)


def counted(theirs: InProcessBackend, remote: Region, immediate: int = 1) -> bool:
    arrival = theirs.expect(remote, immediate, 1, SECONDS)
    ended = arrival.state is State.DONE
    arrival.cancel()
    return ended


def test_a_cancelled_transfer_settles_when_the_library_has_ended_it(
    ours: InProcessBackend, theirs: InProcessBackend
) -> None:
    transfer = held(ours, filled(ours), theirs.allocate(PAGE))

    transfer.cancel()
    assert transfer.state is State.CANCELLED
    assert not transfer.settle(0.05)
    ours.library.go_on.set()

    assert transfer.settle(SECONDS)


def test_a_write_that_nobody_waits_for_any_more_counts_nothing(
    ours: InProcessBackend, theirs: InProcessBackend
) -> None:
    """Its bytes have landed all the same: the library could not be stopped."""
    remote = theirs.allocate(PAGE)
    transfer = held(ours, filled(ours), remote)
    transfer.cancel()
    ours.library.go_on.set()
    assert transfer.settle(SECONDS)

    assert bytes(remote.memory) == pattern(PAGE)
    assert not counted(theirs, remote)


def test_a_region_that_closes_in_the_middle_fails_who_is_inside(
    ours: InProcessBackend, theirs: InProcessBackend, soon: None
) -> None:
    remote = theirs.allocate(PAGE)
    transfer = held(ours, filled(ours), remote)

    remote.close()
    ours.library.go_on.set()

    with pytest.raises(StaleDescriptor):
        transfer.wait(SECONDS)


def test_memory_that_somebody_does_not_leave_is_never_used_again(
    ours: InProcessBackend, theirs: InProcessBackend, soon: None
) -> None:
    remote = theirs.allocate(PAGE)
    held(ours, filled(ours), remote)

    remote.close()

    assert remote in visit_regions._kept_for_good
    assert len(theirs.library.registered) == 1


def test_our_own_memory_is_not_let_go_while_the_library_is_at_it(
    ours: InProcessBackend, theirs: InProcessBackend, soon: None
) -> None:
    local = filled(ours)
    held(ours, local, theirs.allocate(PAGE))

    local.close()

    assert local in visit_regions._kept_for_good
    assert len(ours.library.registered) == 1


@pytest.mark.parametrize("end", ["cancel", "death"])
def test_of_lives_that_end_in_the_middle_of_a_transfer_nothing_is_kept(
    ours: InProcessBackend, soon: None, end: str
) -> None:
    """Their only connection is never idle again."""
    local, left = filled(ours), list[bytes]()
    ours.library.left = left.append  # type: ignore[method-assign, assignment]
    with closing(InProcessBackend()) as theirs:
        transfer = held(ours, local, theirs.allocate(PAGE))
        if end == "cancel":
            transfer.cancel()
        else:
            theirs.close()
        assert left == []
        ours.library.go_on.set()
        assert transfer.settle(SECONDS)

        assert left == [b"here"]
        assert not ours._cards


def test_memory_that_all_have_left_is_let_go(
    ours: InProcessBackend, theirs: InProcessBackend
) -> None:
    local, remote = filled(ours), theirs.allocate(PAGE)
    ours.write(local, remote.descriptor, ALL, SECONDS).wait(SECONDS)

    local.close()
    remote.close()

    assert not {local, remote} & set(visit_regions._kept_for_good)
    assert ours.library.registered == theirs.library.registered == {}


def test_a_library_at_work_outlives_its_backend(
    ours: InProcessBackend,
    theirs: InProcessBackend,
    soon: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("pdgate.transfer.runtime.jobs.CLOSE_SECONDS", 0.05)
    transfer = held(ours, filled(ours), theirs.allocate(PAGE))

    ours.close()

    assert (transfer.state, transfer.settled) == (State.FAILED, False)
    assert not ours.library.closed
    theirs.close()
    assert not theirs.library.closed


def test_an_idle_library_ends_with_its_backend(ours: InProcessBackend) -> None:
    ours.allocate(PAGE)

    ours.close()

    assert ours.library.closed
    assert ours.library.registered == {}


def test_a_failed_write_counts_nothing_and_its_memory_is_not_used_again(
    ours: InProcessBackend, theirs: InProcessBackend
) -> None:
    local, remote = filled(ours), theirs.allocate(PAGE)
    ours.library.fails = True

    with pytest.raises(TransferError, match="it failed"):
        ours.write(local, remote.descriptor, ALL, SECONDS, immediate=1).wait(SECONDS)

    assert not counted(theirs, remote)
    remote.close()
    assert remote in visit_regions._kept_for_good


def test_a_write_that_did_not_show_up_is_not_believed(
    ours: InProcessBackend, theirs: InProcessBackend
) -> None:
    remote = theirs.allocate(PAGE)
    theirs.library.silent = True

    with pytest.raises(TransferError, match="did not show up"):
        ours.write(filled(ours), remote.descriptor, ALL, SECONDS, immediate=1).wait(SECONDS)

    assert not counted(theirs, remote)


def test_memory_that_another_process_shared_is_written_from(
    ours: InProcessBackend, theirs: InProcessBackend
) -> None:
    """A mover adopts the engine's pages, and peers are not let into them by it."""
    remote, fd = theirs.allocate(PAGE), filled(theirs).share()
    assert fd is not None
    adopted = ours.adopt(fd, PAGE)

    ours.write(adopted, remote.descriptor, ALL, SECONDS, immediate=1).wait(SECONDS)

    assert bytes(remote.memory) == pattern(PAGE)
    assert counted(theirs, remote)
    with pytest.raises(TypeError, match="cannot reach"):
        ours.expect(adopted, 1, 1, SECONDS)


def test_a_visitor_that_vanishes_spoils_the_memory(theirs: InProcessBackend) -> None:
    """It may have been writing when it was killed."""
    remote = theirs.allocate(PAGE)
    with dial(remote) as sock:
        assert enter(sock, remote).status is wire.MoverStatus.OK

    remote.close()

    assert remote in visit_regions._kept_for_good


def test_visits_do_not_nest(theirs: InProcessBackend) -> None:
    remote = theirs.allocate(PAGE)
    with dial(remote) as sock:
        enter(sock, remote)
        wire.send_request(sock, wire.MoverRequest(wire.MoverWord.ENTER, bytes(16)))

        assert sock.sock.recv(1) == b""


@settings(max_examples=30)
@given(st.binary(min_size=1, max_size=200))
def test_garbage_ends_its_own_connection_only(data: bytes) -> None:
    with closing(InProcessBackend()) as backend:
        region = filled(backend)
        with dial(region) as channel:
            channel.sock.sendall(data)
        local = backend.allocate(PAGE)

        backend.read(local, region.descriptor, ALL, SECONDS).wait(SECONDS)

        assert bytes(local.memory) == pattern(PAGE)


@given(
    st.sampled_from(wire.MoverWord), st.binary(min_size=16, max_size=16), st.integers(0, 2**32 - 1)
)
def test_requests_arrive_as_they_were_sent(
    word: wire.MoverWord, epoch: bytes, immediate: int
) -> None:
    ours, theirs = pair()
    with ours, theirs:
        for sent in (wire.MoverRequest(word, epoch, immediate), wire.MoverRequest(word, epoch)):
            wire.send_request(ours, sent)
            assert wire.receive_request(theirs, SECONDS) == sent


@given(st.sampled_from(wire.MoverStatus), st.integers(0, 2**64 - 1), st.binary(max_size=2000))
def test_answers_arrive_as_they_were_sent(status: wire.MoverStatus, base: int, card: bytes) -> None:
    ours, theirs = pair()
    with ours, theirs:
        sent = wire.MoverAnswer(status, wire.new_ticket(), base, 2**64 - 1, card)
        wire.send_answer(ours, sent)
        assert wire.receive_answer(theirs) == sent


def test_a_library_is_told_whose_memory_it_is(
    ours: InProcessBackend, theirs: InProcessBackend
) -> None:
    """The device's bytes are this process's here: a library gets addresses, whatever they mean."""
    buffer = memoryview(bytearray(PAGE))
    local = ours.register(DeviceMemory("cuda:1", memories.address(buffer), PAGE))
    remote = filled(theirs)

    ours.read(local, remote.descriptor, ALL, SECONDS).wait(SECONDS)

    assert bytes(buffer) == pattern(PAGE)
    assert ours.library.places == [("cuda:1",), ("cuda:1", "host")]
    assert local.descriptor.address["memory"] == "cuda:1"
    with pytest.raises(TransferError, match="in-process moves cuda and host memory: fake:0 here"):
        ours.register(DeviceMemory("fake:0", 4096, PAGE))
