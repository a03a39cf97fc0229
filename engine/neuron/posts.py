"""Posts on a communicator, and what their poster may look at."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pdgate.transfer.base import TransferError

BATCH: Final = 64
"""Pieces that are written at once."""

Numbers = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class PostPieces:
    """Pieces of this side's memory in bytes, in the order in which both ends list them."""

    offsets: Numbers
    lengths: Numbers

    def batches(self) -> Iterator["PostPieces"]:
        for start in range(0, len(self.lengths), BATCH):
            part = slice(start, start + BATCH)
            yield PostPieces(self.offsets[part], self.lengths[part])


class CompletionToken:
    """Completion of all that was posted under this token.

    Attributes:
        error: Why not all of it went, if so.
    """

    def __init__(self) -> None:
        self._open = 0
        self.error: TransferError | None = None

    @property
    def done(self) -> bool:
        """Whether nothing more happens: all has gone, or the communicator has ended."""
        return self._open == 0

    def posted(self) -> None:
        self._open += 1

    def ended(self, error: TransferError | None = None) -> None:
        self._open -= 1
        self.error = self.error or error


class PostGate:
    """What a post waits for on our side: its pages are computed."""

    def __init__(self, *, is_open: bool = True) -> None:
        self.is_open = is_open
