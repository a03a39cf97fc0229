"""KV against peers: who knows the secret gets what it was granted, and nothing else."""

import contextlib
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing

import pytest

from pdgate.transfer.base import (
    Forbidden,
    Op,
    Range,
    StaleDescriptor,
    State,
)
from pdgate.transfer.messenger import messages
from pdgate.transfer.messenger.errors import Why
from pdgate.transfer.parts import Stretch
from pdgate.transfer.tcp.backend import TcpBackend
from tests.support.engine_pair import P_BLOCKS, PROMPT
from tests.support.fake_core import LAYOUT, SECONDS, FakeCore
from tests.support.kv_strangers import Reader, ask_for, member, page, pages, push_into


@pytest.fixture
def reader(prefill: FakeCore) -> Iterator[Reader]:
    with ExitStack() as stack:
        yield Reader(prefill, stack, member())


def test_a_reader_gets_the_pages_of_its_offer_and_no_others(
    prefill: FakeCore, reader: Reader
) -> None:
    there = reader.ask()
    assert there.epoch != prefill.region.descriptor.epoch
    for layer in range(LAYOUT.layers):
        for block in P_BLOCKS:
            reader.read(there, page(layer, block))
    before = pages(prefill)

    others = [
        page(0, 1),
        page(2, 10),
        page(0, P_BLOCKS[0], bytes_before=-1),
        page(0, P_BLOCKS[0], length=LAYOUT.page_bytes + 1),
        Range(0, 0, LAYOUT.total_bytes),
    ]
    for bad in others:
        with pytest.raises(Forbidden):
            reader.read(there, bad)
        with pytest.raises(Forbidden):
            reader.read(there, page(0, P_BLOCKS[0]), *[bad] * 40)
    # Its own pages are for reading.
    with pytest.raises(Forbidden):
        reader.write(there, page(0, P_BLOCKS[0]))

    assert pages(prefill) == before


def test_what_one_peer_was_granted_is_of_no_use_to_another(
    prefill: FakeCore, reader: Reader
) -> None:
    """Even with the 128 random bits of the grant: its name is in every connection's proof."""
    there = reader.ask()
    with ExitStack() as stack:
        other = Reader(prefill, stack, member())
        with pytest.raises(StaleDescriptor):
            other.read(there, page(0, P_BLOCKS[0]))
        with pytest.raises(AssertionError, match="taken key"):
            other.ask()


def test_a_grant_ends_with_the_offer(prefill: FakeCore, reader: Reader) -> None:
    there = reader.ask()
    reader.read(there, page(0, P_BLOCKS[0]))

    messages.send(reader.line, messages.Release("k", reader.offer_id))
    assert messages.receive(reader.line) == messages.Released(held=True)

    with pytest.raises(StaleDescriptor):
        reader.read(there, page(0, P_BLOCKS[0]))


def test_a_grant_ends_with_the_connection_of_who_asked(prefill: FakeCore, reader: Reader) -> None:
    there = reader.ask()
    reader.line.close()
    with ExitStack() as stack:
        # Nobody else gets the pages before the grant has ended.
        other = Reader(prefill, stack, member())
        until = time.monotonic() + SECONDS
        while not other.asks_well() and time.monotonic() < until:
            threading.Event().wait(0.01)

    with pytest.raises(StaleDescriptor):
        reader.read(there, page(0, P_BLOCKS[0]))


def test_a_grant_ends_with_its_time() -> None:
    name = member()
    with (
        closing(TcpBackend(identity=member())) as owner,
        closing(TcpBackend(identity=name)) as peer,
    ):
        region, local = owner.allocate(4096), peer.allocate(4096)
        for seconds, error in ((SECONDS, None), (-0.001, StaleDescriptor)):
            grant = region.grant(name.name.hex(), Op.READ, Stretch(0, 4096), seconds)
            read = peer.read(local, grant.descriptor, [Range(0, 0, 1)], SECONDS)
            with pytest.raises(error) if error else contextlib.nullcontext():
                read.wait(SECONDS)


def test_who_may_write_counts_nothing_but_its_own_push() -> None:
    """Another push would take it for its own pages, and begin with what is not there."""
    name = member()
    with (
        closing(TcpBackend(identity=member())) as owner,
        closing(TcpBackend(identity=name)) as peer,
    ):
        region, local = owner.allocate(4096), peer.allocate(4096)
        grant = region.grant(name.name.hex(), Op.WRITE, Stretch(0, 64), SECONDS, range(7, 8))
        waits = owner.expect(region, 8, 1, SECONDS)

        with pytest.raises(Forbidden):
            peer.write(local, grant.descriptor, [], SECONDS, 8).wait(SECONDS)
        with pytest.raises(Forbidden):
            peer.write(local, grant.descriptor, [Range(0, 64, 1)], SECONDS, 7).wait(SECONDS)
        peer.write(local, grant.descriptor, [Range(0, 0, 64)], SECONDS, 7).wait(SECONDS)

        assert waits.state is State.RUNNING
        grant.revoke()
        with pytest.raises(StaleDescriptor):
            peer.write(local, grant.descriptor, [Range(0, 0, 64)], SECONDS, 7).wait(SECONDS)


def test_a_prefill_is_handed_to_who_asked_for_it_and_to_nobody_else(prefill: FakeCore) -> None:
    """Though another knows its key, and comes first."""
    victim, other = member(), member()
    with ExitStack() as stack:
        asks = Reader(prefill, stack, victim)
        messages.send(asks.line, messages.Prefill("v", list(PROMPT)))
        assert messages.receive(asks.line) == messages.Accepted()
        early = Reader(prefill, stack, other)
        for said in (ask_for("v"), push_into("v"), messages.Abandon("v", "")):
            messages.send(early.line, said)
            answer = messages.receive(early.line)
            assert answer == messages.Released(held=False) or (
                isinstance(answer, messages.RefusedMessage) and answer.why == Why.TAKEN
            ), answer

        messages.send(asks.line, ask_for("v"))
        assert isinstance(messages.receive(asks.line), messages.Offered)
