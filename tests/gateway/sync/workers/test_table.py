"""One writes, others read: rows come and go, and no number turns up under another key."""

from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from pdgate.gateway.sync.workers import table
from pdgate.gateway.sync.workers.neighbourhood import Neighbourhood
from pdgate.gateway.sync.workers.table import ROW_WORDS, ROWS, TABLE_BYTES, Table, TableView, key_of

KEYS = [key_of("instance", name) for name in "abcdef"]
numbers = st.lists(st.integers(-(2**63), 2**63 - 1), min_size=table.NUMBERS, max_size=table.NUMBERS)
steps = st.lists(st.tuples(st.sampled_from(KEYS), st.none() | numbers), max_size=60)


def test_a_name_has_the_same_key_in_every_process() -> None:
    """Python's own hash of a string has not."""
    assert key_of("instance", "p0") == -4247999905421496707
    assert key_of("model", "p0") != key_of("instance", "p0")


@settings(max_examples=30)
@given(steps)
def test_readers_see_what_was_written_last_of_those_that_are_there(
    steps: list[tuple[int, list[int] | None]],
) -> None:
    """None takes a row back; a reader that looks again only after changes misses nothing."""
    memory = memoryview(bytearray(TABLE_BYTES))
    writer, reader = Table(memory), TableView(memory)
    there: dict[int, memoryview] = {}
    expected: dict[int, list[int]] = {}
    seen, rows = reader.changes, reader.rows()

    for key, written in steps:
        if written is None:
            if there.pop(key, None) is not None:
                writer.take_back(key)
                del expected[key]
        else:
            if key not in there:
                row = writer.give(key)
                assert row is not None
                assert row.tolist() == [0] * table.NUMBERS
                there[key] = row
            for index, number in enumerate(written):
                there[key][index] = number
            expected[key] = written

        if reader.changes != seen:
            seen, rows = reader.changes, reader.rows()
        assert {key: row.tolist() for key, row in rows.items()} == expected


def test_a_full_table_gives_no_row_until_one_is_taken_back() -> None:
    writer = Table(memoryview(bytearray(TABLE_BYTES)))
    for key in range(1, ROWS + 1):
        assert writer.give(key) is not None

    assert writer.give(-1) is None
    writer.take_back(5)
    assert writer.give(-1) is not None


def test_rows_stay_apart_in_cache_lines() -> None:
    """Two engines' numbers share no line, and a row has room for its key and numbers."""
    assert table.ROW_WORDS * table.WORD_BYTES == 64
    assert table.ROW_WORDS > table.NUMBERS


def test_a_key_that_is_seen_after_the_change_that_it_was_part_of_is_found(tmp_path: Path) -> None:
    """No barrier keeps the counter of changes behind the key."""
    one, other = Neighbourhood(tmp_path), Neighbourhood(tmp_path)
    one.look()
    assert other.give(KEYS[0]) is not None
    words = other._folder.memory.cast("q")
    words[ROW_WORDS] = 0
    assert one.edition() > 0
    assert one.theirs(KEYS[0]) == []

    words[ROW_WORDS] = KEYS[0]
    one.look()

    assert len(one.theirs(KEYS[0])) == 1
    for each in (one, other):
        each.close()
