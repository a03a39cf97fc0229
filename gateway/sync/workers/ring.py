"""Messages in memory that one process writes and others read, without a lock: the latest of them.

    word 0   words that have ever been written
    word 1   a hash of word 0
    word 2.. the ring: a message is its length, its words, and a hash of where it begins, its length and
             its words; it never wraps. A length of 0 says that the rest of the ring is empty

A reader believes nothing but hashes. Python has no memory barriers, and processors other than x86 let
others see writes in any order, a byte even; so a message, and the number before it, may be seen half,
late, or after what came later. Whatever is seen, the hash of a copy says whether it is a message as it
was written there and then: where it begins is part of it, so an older one at the same place is none.
The hash is 64 bits of BLAKE2b, which takes 1 to 3 us for a prompt's message; a reader to whom nothing
is new compares two words.

What is not whole yet is left for the next look. If it is not then, it has been overwritten, or will
never be whole, and the reader goes on with what comes next. So a look ends after a ring at most, and
two looks bring a reader on wherever it was.
"""

from array import array
from collections.abc import Iterator
from hashlib import blake2b
from typing import Final

RING_BYTES: Final = 1 << 20
"""Some 500 prompts of 128 KB."""

LONGEST: Final = 8
"""A message fills at most one of so many parts of the ring."""

_WRITTEN, _HASH, _FIRST = 0, 1, 2
_AROUND: Final = 2
"""Words of a message beside its own: its length and its hash."""


def _hash(*parts: "array[int]") -> int:
    found = blake2b(digest_size=8)
    for part in parts:
        found.update(part)
    return int.from_bytes(found.digest(), "little")


class Ring:
    """The writer's side, of memory that is all zeros."""

    def __init__(self, memory: memoryview) -> None:
        self._words = memory.cast("Q")
        self._slots = len(self._words) - _FIRST
        self._written = 0
        self._tell()

    def write(self, message: "array[int]") -> None:
        """Unsigned words, one at least; one that is too long is not written."""
        slots = self._slots
        length = len(message) + _AROUND
        if length > slots // LONGEST:
            return
        left = slots - self._written % slots
        if length > left:
            if left >= _AROUND:
                self._put(array("Q"))
            self._written += left
        self._put(message)
        self._written += length
        self._tell()

    def _put(self, message: "array[int]") -> None:
        at = _FIRST + self._written % self._slots
        head = array("Q", (self._written, len(message)))
        whole = array("Q", (len(message), *message, _hash(head, message)))
        self._words[at : at + len(whole)] = memoryview(whole)

    def _tell(self) -> None:
        self._words[_WRITTEN] = self._written
        self._words[_HASH] = _hash(array("Q", (self._written,)))


class RingReader:
    """
    Attributes:
        lost: How often something was passed over unread.
    """

    def __init__(self, memory: memoryview) -> None:
        """Of what is written from now on."""
        self._words = memory.cast("Q")
        self._slots = len(self._words) - _FIRST
        self._seen = (0, 0)
        self._written: int | None = None
        self._read: int | None = None
        self._doubted: int | None = None
        self.lost = 0
        self._look()

    def news(self) -> Iterator["array[int]"]:
        self._look()
        written = self._written
        if written is None or self._read is None:
            return
        if not 0 <= written - self._read <= self._slots:
            self._go_on(written)
        while self._read < written:
            at = self._read % self._slots
            message = self._message(at)
            if message is None:
                if self._doubted == self._read:
                    self._go_on(written)
                else:
                    self._doubted = self._read
                return
            if message:
                self._read += len(message) + _AROUND
                yield message
            else:
                self._read += self._slots - at

    def _look(self) -> None:
        """How far the writer is, if that can be seen."""
        seen = self._words[_WRITTEN], self._words[_HASH]
        if seen != self._seen and _hash(array("Q", seen[:1])) == seen[1]:
            self._seen = seen
            self._written = seen[0]
            if self._read is None:
                self._read = seen[0]

    def _message(self, at: int) -> "array[int] | None":
        """What begins there; empty for the rest of the ring, None if it is not whole."""
        words, left = self._words, self._slots - at
        if left < _AROUND:
            return array("Q")
        begin = _FIRST + at
        length = words[begin]
        if length + _AROUND > min(left, self._slots // LONGEST):
            return None
        found = array("Q", words[begin + 1 : begin + length + _AROUND].tobytes())
        said = found.pop()
        head = array("Q", (self._read or 0, length))
        return found if _hash(head, found) == said else None

    def _go_on(self, written: int) -> None:
        self.lost += 1
        self._read, self._doubted = written, None
