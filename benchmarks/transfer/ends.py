"""What the two ends of a contender can do, and the bytes that they agree on."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from pdgate.transfer.base import Range

SECONDS = 60.0
WORD_BYTES = 8
DONE: Callable[[], None] = lambda: None
"""For writes that are over when they return."""
ODD = np.uint64(0x9E3779B97F4A7C15)

Calls = Sequence[Sequence[Range]]


class Far(ABC):
    """Owns the memory that is written.

    Attributes:
        card: What the near end needs to find it; plain data.
    """

    memory: memoryview
    card: Mapping[str, Any]

    def prepare(self, calls: Calls) -> None:
        """These are going to be written. Most ends have nothing to do for it."""
        return

    @abstractmethod
    def close(self) -> None: ...


class Near(ABC):
    memory: memoryview

    @abstractmethod
    def begin(self, ranges: Sequence[Range]) -> Callable[[], None]:
        """A write; what it returns waits until the bytes are in the far end's memory.

        Those begun first are waited for first.
        """

    @abstractmethod
    def close(self) -> None: ...


def pattern(start: int, length: int) -> npt.NDArray[np.uint64]:
    """The near end's bytes at `start`: no word of them is there twice."""
    words = np.arange(start // WORD_BYTES, (start + length) // WORD_BYTES, dtype=np.uint64)
    return (words + np.uint64(1)) * ODD


def fill(memory: memoryview) -> None:
    np.frombuffer(memory, np.uint64)[:] = pattern(0, len(memory))


def wipe(memory: memoryview, calls: Calls) -> None:
    """So that what is there afterwards was written by these calls."""
    content = np.frombuffer(memory, np.uint8)
    for one in (one for ranges in calls for one in ranges):
        content[one.remote : one.remote + one.length] = 0


def verify(memory: memoryview, calls: Calls) -> None:
    """Raises AssertionError."""
    content = np.frombuffer(memory, np.uint64)
    for one in (one for ranges in calls for one in ranges):
        first = one.remote // WORD_BYTES
        found = content[first : first + one.length // WORD_BYTES]
        if not np.array_equal(found, pattern(one.local, one.length)):
            raise AssertionError(f"other bytes than were sent in {one}")
