"""Messages come in their order and whole, or not at all."""

from array import array

from hypothesis import given
from hypothesis import strategies as st

from pdgate.gateway.neighbours.ring import LONGEST, Reader, Ring

SLOTS = 64
LONGEST_WORDS = SLOTS // LONGEST


def memory() -> memoryview:
    return memoryview(bytearray(8 * (SLOTS + 2)))


def message(number: int, length: int) -> "array[int]":
    return array("Q", [number] * length)


@given(st.lists(st.tuples(st.integers(1, LONGEST_WORDS - 1), st.booleans()), max_size=60))
def test_a_reader_that_keeps_up_gets_all_in_order(steps: list[tuple[int, bool]]) -> None:
    shared = memory()
    ring, reader = Ring(shared), Reader(shared)
    sent, got, behind = [], [], 0
    for number, (length, reads) in enumerate(steps):
        behind += length + 1
        # At the end of the ring, as much again may be left empty.
        if reads or behind > SLOTS - 2 * LONGEST_WORDS:
            got += list(reader.news())
            behind = length + 1
        sent.append(message(number, length))
        ring.write(sent[-1])

    assert got + list(reader.news()) == sent
    assert reader.lost == 0


def test_who_comes_later_hears_of_what_comes_later() -> None:
    shared = memory()
    ring = Ring(shared)
    ring.write(message(1, 3))
    reader = Reader(shared)
    ring.write(message(2, 3))

    assert list(reader.news()) == [message(2, 3)]
    assert list(reader.news()) == []


def test_who_falls_behind_goes_on_with_what_comes_next() -> None:
    shared = memory()
    ring, reader = Ring(shared), Reader(shared)
    for number in range(10):
        ring.write(message(number, LONGEST_WORDS - 1))
    assert list(reader.news()) == []
    assert reader.lost == 1

    ring.write(message(99, 3))
    assert list(reader.news()) == [message(99, 3)]


def test_what_is_overwritten_while_it_is_read_is_not_taken_for_a_message() -> None:
    """The writer says what it is about to write before it does."""
    shared = memory()
    ring, reader = Ring(shared), Reader(shared)
    ring.write(message(1, 3))
    shared.cast("Q")[1] = SLOTS + 1

    assert list(reader.news()) == []
    assert reader.lost == 1


def test_what_is_too_long_is_not_written() -> None:
    shared = memory()
    ring, reader = Ring(shared), Reader(shared)
    ring.write(message(1, LONGEST_WORDS))

    assert list(reader.news()) == []
