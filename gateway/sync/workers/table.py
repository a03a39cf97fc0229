"""Rows of numbers in memory that one process writes and others read, without a lock.

    word 0           how often a row has been given or taken back
    word 1           rows that have ever been given
    word 8 (r + 1)   row r: its key (0: unused), five numbers, two words for the next idea

A word is 8 bytes, aligned and written at once, so a reader sees a number as it was at some moment.
In which order others see several of them is not said: Python has no memory barriers, and processors other
than x86 keep no order. So a row's key, or that a row was given, may be seen late; a reader that looks again
now and then (neighbourhood.py) sees it.
Numbers may be of two moments: calls with a leg that is not among the tokens yet. Who only
weighs them is not misled by that for longer than until the next look.
"""

from hashlib import blake2b
from typing import Final

ROWS: Final = 1024
ROW_WORDS: Final = 8
NUMBERS: Final = 5
WORD_BYTES: Final = 8
TABLE_BYTES: Final = (ROWS + 1) * ROW_WORDS * WORD_BYTES

_CHANGES, _GIVEN = 0, 1
_NOBODY: Final = 0


def key_of(kind: str, name: str) -> int:
    """The same in every process; it is taken for granted that no two names have the same."""
    digest = blake2b(f"{kind} {name}".encode(), digest_size=WORD_BYTES).digest()
    return int.from_bytes(digest, "little", signed=True) or 1


class Table:
    """The writer's side, of memory that is all zeros."""

    def __init__(self, memory: memoryview) -> None:
        """`memory`: TABLE_BYTES of it."""
        self._words = memory.cast("q")
        self._free: list[int] = []
        self._rows: dict[int, int] = {}

    def give(self, key: int) -> memoryview | None:
        """The numbers of a row for the key, all 0; None if all rows are given."""
        words = self._words
        if self._free:
            row = self._free.pop()
        elif words[_GIVEN] < ROWS:
            row = words[_GIVEN]
            words[_GIVEN] = row + 1
        else:
            return None
        self._rows[key] = row
        at = (row + 1) * ROW_WORDS
        # The key last: until it is there the numbers are not read.
        words[at] = key
        words[_CHANGES] += 1
        return words[at + 1 : at + 1 + NUMBERS]

    def take_back(self, key: int) -> None:
        """Take a row back; a holder of its numbers must not write them any more."""
        row = self._rows.pop(key)
        at = (row + 1) * ROW_WORDS
        for word in range(at, at + 1 + NUMBERS):
            self._words[word] = 0
        self._words[_CHANGES] += 1
        self._free.append(row)


class TableView:
    """A reader's side."""

    def __init__(self, memory: memoryview) -> None:
        self._words = memory.cast("q")

    @property
    def changes(self) -> int:
        """Rows that were found before are only good for as long as this is the same."""
        return self._words[_CHANGES]

    def keys(self) -> tuple[int, ...]:
        """Keys of all rows, as they are seen now."""
        words = self._words
        return tuple(words[ROW_WORDS : (self._given() + 1) * ROW_WORDS : ROW_WORDS])

    def _given(self) -> int:
        return max(0, min(self._words[_GIVEN], ROWS))

    def rows(self) -> dict[int, memoryview]:
        """Key -> its numbers, which go on changing."""
        words = self._words
        found = {}
        for at in range(ROW_WORDS, (self._given() + 1) * ROW_WORDS, ROW_WORDS):
            key = words[at]
            if key != _NOBODY:
                found[key] = words[at + 1 : at + 1 + NUMBERS]
        return found
