"""What comes beside the pages: a first token, a hidden state. In time, whole, or not at all."""

import queue
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdgate.transfer import registry
from pdgate.transfer.base import State, TransferError
from pdgate.transfer.messenger.context import NOTHING, Context, pack, slot_bytes, unpack
from pdgate.transfer.messenger.errors import HandOverError
from pdgate.transfer.messenger.interrupt import Interrupt
from pdgate.transfer.messenger.outbox import ContextOutbox
from pdgate.transfer.messenger.slots import Slots
from pdgate.transfer.runtime.running import RunningTransfer
from tests.support.kv_layouts import PLAIN
from tests.transfer.messenger.nodes import SECONDS, Node

TOKENS = 10
STATE = Context(first_token=31999, data=bytes(range(100)))
MODES: dict[str, dict[str, Any]] = {
    "pull": {"push": False},
    "push after prefill": {"by_layer": False},
    "push by layer": {},
}


@pytest.fixture
def prefill(backend: str) -> Iterator[Node]:
    with closing(Node(backend, PLAIN, context_bytes=100)) as node:
        yield node


@pytest.fixture
def decode(backend: str) -> Iterator[Node]:
    with closing(Node(backend, PLAIN, context_bytes=100)) as node:
        yield node


@given(st.none() | st.integers(0, 2**63 - 1), st.binary(max_size=80))
def test_what_was_packed_is_what_comes_out(first_token: int | None, data: bytes) -> None:
    said = Context(first_token, data)
    slot = pack(said).ljust(slot_bytes(80), b"x")

    assert len(pack(said)) <= slot_bytes(len(data))
    assert unpack(memoryview(slot)) == said


@pytest.mark.parametrize(
    "slot",
    [
        bytes(64),
        b"XDCP" + bytes(60),
        b"PDCX" + struct.pack("<Iq", 49, 1).ljust(60),
        b"PDCX" + struct.pack("<Iq", 0, -2).ljust(60),
    ],
    ids=["empty", "foreign", "longer than its slot", "a token below none"],
)
def test_what_is_no_context_is_not_taken_for_one(slot: bytes) -> None:
    with pytest.raises(HandOverError, match="broken peer"):
        unpack(memoryview(slot))


@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
@pytest.mark.parametrize("said", [STATE, Context(first_token=0), Context(data=b"x"), NOTHING])
def test_what_prefill_gives_along_comes_with_the_pages(
    prefill: Node, decode: Node, said: Context, mode: dict[str, Any]
) -> None:
    content = prefill.expect("k", TOKENS)
    decode.load("k", prefill.port, TOKENS, context=True, **mode)
    prefill.computed("k", TOKENS)
    prefill.kept("k", TOKENS, said)

    assert decode.result() is None
    assert decode.came.get_nowait() == ("k", said)
    assert decode.holds("k", content)
    assert prefill.freed.get(timeout=SECONDS) == "k"
    _all_is_free(prefill, decode)


def test_a_push_that_is_asked_for_after_the_prefill_carries_it_too(
    prefill: Node, decode: Node
) -> None:
    content = prefill.expect("k", TOKENS)
    prefill.kept("k", TOKENS, STATE)

    decode.load("k", prefill.port, TOKENS, context=True)

    assert decode.result() is None
    assert decode.came.get_nowait() == ("k", STATE)
    assert decode.holds("k", content)


def test_decode_waits_for_the_context_though_all_pages_have_come(
    prefill: Node, decode: Node
) -> None:
    """The first token is sampled when the last layer is done, and decode starts behind it."""
    prefill.expect("k", TOKENS)
    decode.load("k", prefill.port, TOKENS, context=True)
    prefill.computed("k", TOKENS)
    # Another load, begun later, is through by now.
    prefill.expect("k2", TOKENS)
    prefill.computed("k2", TOKENS)
    decode.load("k2", prefill.port, TOKENS)
    assert decode.results.get(timeout=SECONDS) == ("k2", None)
    assert decode.came.get_nowait() == ("k2", NOTHING)

    prefill.kept("k", TOKENS, STATE)

    assert decode.results.get(timeout=SECONDS) == ("k", None)
    assert decode.came.get_nowait() == ("k", STATE)


def test_more_loads_than_slots_take_turns(prefill: Node, decode: Node) -> None:
    """And nobody gets another's."""
    keys = [f"k{n}" for n in range(5)]
    contexts = {key: Context(n, key.encode() * n) for n, key in enumerate(keys)}
    for key in keys:
        prefill.expect(key, TOKENS)
        decode.load(key, prefill.port, TOKENS, context=True)
    for key in reversed(keys):
        prefill.computed(key, TOKENS)
        prefill.kept(key, TOKENS, contexts[key])

    assert {decode.results.get(timeout=SECONDS) for _ in keys} == {(key, None) for key in keys}
    assert dict(decode.came.get_nowait() for _ in keys) == contexts
    assert {prefill.freed.get(timeout=SECONDS) for _ in keys} == set(keys)
    _all_is_free(prefill, decode)


def test_who_waits_for_a_slot_can_be_cancelled(backend: str, prefill: Node) -> None:
    with closing(Node(backend, PLAIN, context_bytes=100, slots=1)) as decode:
        prefill.expect("k1", TOKENS)
        decode.load("k1", prefill.port, TOKENS, context=True)
        decode.load("k2", prefill.port, TOKENS, context=True)
        decode.loads.cancel("k2")
        decode.loads.cancel("k1")

        ends = {decode.results.get(timeout=SECONDS) for _ in range(2)}

        assert ends == {("k1", "cancelled"), ("k2", "cancelled")}
        assert decode.used == 0
        assert decode.inbox is not None
        assert decode.inbox.free == 1


def test_a_slot_holds_nothing_of_who_had_it_before(backend: str) -> None:
    """A peer that counts without writing must not pass the last one's context on."""
    with closing(registry.load(backend)) as memory:
        slots = Slots(memory, 100, 1)
        for _ in range(2):
            with slots.taken(time.monotonic(), Interrupt()) as offset:
                assert not any(slots.view(offset))
                slots.view(offset)[: len(pack(STATE))] = pack(STATE)
        slots.close()


def test_a_slot_that_does_not_become_free_is_a_named_error(backend: str) -> None:
    with closing(registry.load(backend)) as memory:
        slots = Slots(memory, 100, 1)
        assert slots.take() is not None
        with (
            pytest.raises(HandOverError, match="too late"),
            slots.taken(time.monotonic(), Interrupt()),
        ):
            pass
        slots.close()


def test_a_context_that_is_longer_than_declared_fails_its_own_push(
    prefill: Node, decode: Node
) -> None:
    prefill.expect("k", TOKENS)
    decode.load("k", prefill.port, TOKENS, context=True)
    prefill.kept("k", TOKENS, Context(data=bytes(101)))

    error = decode.result()

    assert error is not None
    assert "a context of 101 bytes, 100 declared" in error
    assert prefill.freed.get(timeout=SECONDS) == "k"
    assert (prefill.used, decode.used) == (0, 0)
    _all_is_free(prefill, decode)


def test_contexts_that_have_no_room_are_refused_when_the_two_meet(
    backend: str, prefill: Node
) -> None:
    with closing(Node(backend, PLAIN, context_bytes=64)) as small:
        prefill.expect("k", TOKENS)
        small.load("k", prefill.port, TOKENS, context=True)

        error = small.result()

    assert error is not None
    assert error.startswith("wrong layout: contexts of up to 100 bytes here, room for 64 there")


@pytest.mark.parametrize("lacks", ["prefill", "decode"])
def test_who_has_no_contexts_says_so(backend: str, lacks: str) -> None:
    sizes = {"prefill": 100, "decode": 100, lacks: None}
    with (
        closing(Node(backend, PLAIN, context_bytes=sizes["prefill"])) as prefill,
        closing(Node(backend, PLAIN, context_bytes=sizes["decode"])) as decode,
    ):
        prefill.expect("k", TOKENS)
        decode.load("k", prefill.port, TOKENS, context=True)

        error = decode.result()

    assert error is not None
    assert error.startswith("unsupported")


def test_a_dropped_prompt_leaves_no_context_behind(prefill: Node, decode: Node) -> None:
    prefill.expect("k", TOKENS)
    decode.load("k", prefill.port, TOKENS, context=True)
    prefill.computed("k", TOKENS)

    prefill.offers.drop("k", "the client left")
    prefill.pushes.drop("k", "the client left")

    error = decode.result()
    assert error is not None
    assert "the client left" in error
    assert decode.came.empty()
    _all_is_free(prefill, decode)


def test_an_outbox_sends_all_that_it_is_given_however_few_slots_it_has(backend: str) -> None:
    """Also what cannot be sent is told, and in between nobody waits."""
    count = 300
    with closing(registry.load(backend)) as ours, closing(registry.load(backend)) as theirs:
        region = theirs.allocate(count * slot_bytes(8))
        gone = theirs.allocate(64)
        stale = gone.descriptor
        gone.close()
        outbox = ContextOutbox(ours, 8, slots=1)
        landed = theirs.expect(region, 5, count, SECONDS)
        ends: queue.Queue[tuple[int, TransferError | None]] = queue.Queue()
        until = SECONDS + time.monotonic()
        for n in range(count):
            remote = region.descriptor if n % 2 else stale
            offset = n * slot_bytes(8) if n % 2 else 0
            outbox.send(Context(n), remote, offset, until, 5, partial(_put, ends, n))

        told = dict(ends.get(timeout=SECONDS) for _ in range(count))
        assert all((error is None) == bool(n % 2) for n, error in told.items())
        landed.cancel()
        for n in range(1, count, 2):
            start = n * slot_bytes(8)
            assert unpack(region.memory[start : start + slot_bytes(8)]) == Context(n)

        outbox.close()
        late: queue.Queue[tuple[int, TransferError | None]] = queue.Queue()
        outbox.send(Context(1), region.descriptor, 0, until, 5, partial(_put, late, 1))
        assert str(late.get_nowait()[1]) == "the outbox is closed"


def test_a_long_queue_that_cannot_be_sent_ends_one_by_one(
    backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And not one within the other, for which a thread has no room."""
    with closing(registry.load(backend)) as ours, closing(registry.load(backend)) as theirs:
        region = theirs.allocate(64)
        outbox = ContextOutbox(ours, 8, slots=1)
        held = RunningTransfer("the first one")
        with monkeypatch.context() as patch:
            patch.setattr(ours, "write", lambda *_: held)
            outbox.send(NOTHING, region.descriptor, 0, time.monotonic(), 5, lambda _: None)
        ends: queue.Queue[tuple[int, TransferError | None]] = queue.Queue()
        for n in range(2000):
            outside = len(region.memory)
            outbox.send(
                NOTHING, region.descriptor, outside, time.monotonic(), 5, partial(_put, ends, n)
            )
        assert ends.empty()

        held.leave()

        assert [ends.get_nowait()[0] for _ in range(2000)] == list(range(2000))
        assert outbox.free == 1
        outbox.close()


def test_what_is_cancelled_is_not_sent_and_keeps_nobody_waiting(
    backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(registry.load(backend)) as ours, closing(registry.load(backend)) as theirs:
        region = theirs.allocate(64)
        outbox = ContextOutbox(ours, 8, slots=1)
        ends: queue.Queue[tuple[int, TransferError | None]] = queue.Queue()
        until = time.monotonic() + SECONDS

        def send(n: int) -> Callable[[], None]:
            return outbox.send(NOTHING, region.descriptor, 0, until, 5, partial(_put, ends, n))

        held = RunningTransfer("the first one")
        held.begin()
        with monkeypatch.context() as patch:
            patch.setattr(ours, "write", lambda *_: held)
            cancel_sent = send(0)
        cancel_waiting, _ = send(1), send(2)

        cancel_waiting()
        assert isinstance(ends.get_nowait()[1], TransferError)
        assert ends.empty()
        cancel_sent()
        assert held.state is State.CANCELLED
        assert ends.empty()
        held.leave()

        told = dict(ends.get(timeout=SECONDS) for _ in range(2))
        assert isinstance(told[0], TransferError)
        assert told[2] is None
        outbox.close()


def _put(
    ends: "queue.Queue[tuple[int, TransferError | None]]", n: int, error: TransferError | None
) -> None:
    ends.put((n, error))


def _all_is_free(*nodes: Node) -> None:
    for node in nodes:
        assert node.inbox is not None
        assert node.outbox is not None
        assert (node.inbox.free, node.outbox.free) == (2, 2)
