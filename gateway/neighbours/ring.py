"""Messages in memory that one process writes and others read, without a lock: the latest of them.

    word 0   words that have ever been written, when a message is whole
    word 1   the same when the next one is: what is more than a ring before it may be half another
    word 2.. the ring: a message is its length and its words, and never wraps; a length of 0 says
             that the rest of the ring is empty

A reader that falls behind by more than a ring has lost what it did not read, and goes on with what
comes next. It looks at word 1 after it has read, as what it read may have been overwritten then.
"""

from array import array
from collections.abc import Iterator
from typing import Final

RING_BYTES: Final = 1 << 20
"""Some 500 prompts of 128 KB."""

LONGEST: Final = 8
"""A message fills at most one of so many parts of the ring."""

_WRITTEN, _WRITING, _FIRST = 0, 1, 2


class Ring:
    """The writer's side, of memory that is all zeros."""

    def __init__(self, memory: memoryview) -> None:
        self._words = memory.cast("Q")
        self._slots = len(self._words) - _FIRST
        self._written = 0

    def write(self, message: "array[int]") -> None:
        """Unsigned words; one that is too long is not written."""
        words, slots = self._words, self._slots
        length = len(message) + 1
        if length > slots // LONGEST:
            return
        at = self._written % slots
        skipped = slots - at if at + length > slots else 0
        words[_WRITING] = self._written + skipped + length
        if skipped:
            words[_FIRST + at] = 0
            at = 0
        words[_FIRST + at] = length - 1
        words[_FIRST + at + 1 : _FIRST + at + length] = memoryview(message)
        self._written += skipped + length
        words[_WRITTEN] = self._written


class Reader:
    """
    Attributes:
        lost: How often it had fallen behind by more than a ring.
    """

    def __init__(self, memory: memoryview) -> None:
        """Of what is written from now on."""
        self._words = memory.cast("Q")
        self._slots = len(self._words) - _FIRST
        self._read = self._words[_WRITTEN]
        self.lost = 0

    def news(self) -> Iterator["array[int]"]:
        words, slots = self._words, self._slots
        written = words[_WRITTEN]
        while self._read != written:
            at = self._read % slots
            begin = _FIRST + at + 1
            length = words[begin - 1]
            # What is half another message may say anything here.
            message = array("Q", words[begin : begin + length].tobytes())
            if words[_WRITING] - self._read > slots:
                self.lost += 1
                self._read = words[_WRITTEN]
                return
            if not length:
                self._read += slots - at
                continue
            self._read += length + 1
            yield message
