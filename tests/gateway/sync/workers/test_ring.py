"""Messages come in their order and whole, or not at all."""

from array import array
from collections.abc import Iterable
from itertools import islice
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pdgate.gateway.sync.workers.ring import LONGEST, Ring, RingReader

SLOTS = 64
LONGEST_WORDS = SLOTS // LONGEST


def memory() -> memoryview:
    return memoryview(bytearray(8 * (SLOTS + 2)))


def message(number: int, length: int) -> "array[int]":
    return array("Q", [number] * length)


@given(st.lists(st.tuples(st.integers(1, LONGEST_WORDS - 2), st.booleans()), max_size=60))
def test_a_reader_that_keeps_up_gets_all_in_order(steps: list[tuple[int, bool]]) -> None:
    shared = memory()
    ring, reader = Ring(shared), RingReader(shared)
    sent, got, behind = [], [], 0
    for number, (length, reads) in enumerate(steps):
        behind += length + 2
        # At the end of the ring, as much again may be left empty.
        if reads or behind > SLOTS - 2 * LONGEST_WORDS:
            got += list(reader.news())
            behind = length + 2
        sent.append(message(number, length))
        ring.write(sent[-1])

    assert got + list(reader.news()) == sent
    assert reader.lost == 0


def test_who_comes_later_hears_of_what_comes_later() -> None:
    shared = memory()
    ring = Ring(shared)
    ring.write(message(1, 3))
    reader = RingReader(shared)
    ring.write(message(2, 3))

    assert list(reader.news()) == [message(2, 3)]
    assert list(reader.news()) == []


def test_who_falls_behind_goes_on_with_what_comes_next() -> None:
    shared = memory()
    ring, reader = Ring(shared), RingReader(shared)
    for number in range(10):
        ring.write(message(number, LONGEST_WORDS - 2))
    assert list(reader.news()) == []
    assert reader.lost == 1

    ring.write(message(99, 3))
    assert list(reader.news()) == [message(99, 3)]


def test_what_is_too_long_is_not_written() -> None:
    shared = memory()
    ring, reader = Ring(shared), RingReader(shared)
    ring.write(message(1, LONGEST_WORDS - 1))

    assert list(reader.news()) == []


class Bytes:
    """Memory whose every byte that is written can be seen before the others, in any order."""

    def __init__(self) -> None:
        self.seen = memoryview(bytearray(8 * (SLOTS + 2)))
        self.written = memoryview(bytearray(8 * (SLOTS + 2)))

    def pending(self) -> list[int]:
        """Places that a reader does not see as they were written."""
        return [at for at in range(len(self.seen)) if self.seen[at] != self.written[at]]

    def show(self, places: Iterable[int]) -> None:
        for at in places:
            self.seen[at] = self.written[at]


def numbered(number: int) -> "array[int]":
    """Of any length, and known by its words."""
    return array("Q", [number * 0x0101010101010101 & (1 << 64) - 1] * (1 + number % 5))


@pytest.mark.parametrize("backwards", [False, True])
def test_a_message_that_is_seen_byte_by_byte_is_seen_whole_or_not_at_all(backwards: bool) -> None:
    """After each byte of each write a new reader's look, and one of a reader that is always there."""
    memory_ = Bytes()
    ring = Ring(memory_.written)
    memory_.show(memory_.pending())
    there = RingReader(memory_.seen)
    got: list[array[int]] = []
    for number in range(1, 40):
        ring.write(numbered(number))
        for at in sorted(memory_.pending(), reverse=backwards):
            memory_.show([at])
            fresh = list(RingReader(memory_.seen).news())
            assert fresh == []
            got += there.news()
            assert all(message == numbered(message[0] & 0xFF) for message in got)

    numbers = [message[0] & 0xFF for message in got]
    assert numbers == sorted(set(numbers))
    got = []
    for number in (60, 61, 62):
        ring.write(numbered(number))
        memory_.show(memory_.pending())
        got += there.news()
    assert got[-1] == numbered(62)


@given(st.randoms(use_true_random=False), st.integers(1, 40))
@settings(max_examples=60, deadline=None)
def test_in_whatever_order_bytes_are_seen_no_message_is_torn_and_every_reader_comes_on(
    chance: Random, writes: int
) -> None:
    memory_ = Bytes()
    ring = Ring(memory_.written)
    memory_.show(memory_.pending())
    reader = RingReader(memory_.seen)
    got: list[array[int]] = []
    number = 0
    for _ in range(writes):
        for _ in range(chance.randrange(1, 6)):
            number += 1
            ring.write(numbered(number))
        pending = memory_.pending()
        memory_.show(chance.sample(pending, chance.randrange(len(pending) + 1)))
        got += islice(reader.news(), SLOTS + 1)

    numbers = [message[0] & 0xFF for message in got]
    assert all(message == numbered(message[0] & 0xFF) for message in got)
    assert numbers == sorted(set(numbers))
    # Once all is seen, two looks bring it on, and from then on nothing is lost.
    memory_.show(memory_.pending())
    for _ in range(2):
        got += reader.news()
    lost = reader.lost
    for number in range(200, 220):
        ring.write(numbered(number))
        memory_.show(memory_.pending())
        assert list(reader.news()) == [numbered(number)]
    assert reader.lost == lost


def test_a_counter_that_is_seen_before_its_message_makes_nobody_spin() -> None:
    """The reader went round the ring for ever where it saw a length of 0."""
    memory_ = Bytes()
    ring = Ring(memory_.written)
    memory_.show(memory_.pending())
    reader = RingReader(memory_.seen)
    ring.write(numbered(4))
    memory_.show(range(16))

    assert list(islice(reader.news(), 10)) == []
    memory_.show(memory_.pending())
    assert list(reader.news()) == [numbered(4)]


@given(st.binary(min_size=8 * (SLOTS + 2), max_size=8 * (SLOTS + 2)))
def test_memory_of_any_content_ends_a_look(content: bytes) -> None:
    reader = RingReader(memoryview(content))

    assert list(islice(reader.news(), SLOTS + 1)) == []
