"""State of the Batch API: what is kept of files, batches and the lines that are done.

A result is kept once for each line, in one step; so a line that has one is never served again, and
one that was under way when the process died has none. Lists are pages: what comes behind `after`.

A content is loose before its file is added and from its removal on, so that nothing stays behind at a
storage that is away, or of a process that dies: what is loose for longer than it may be is to be removed.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import msgspec

from pdgate.gateway.batch.lines import LineResult
from pdgate.gateway.batch.objects import BatchObject, StoredFile
from pdgate.protocols.errors import GatewayError

MOST_FILES: Final = 10_000
"""Of one owner; files that batches write are added beyond it."""
MOST_ENDED: Final = 10_000
"""Batches of one owner that have ended; older ones are forgotten."""


class StateAway(GatewayError):
    """The state or the files of batches cannot be read or written now."""

    status, code = 503, "batches_unavailable"


class LeadLost(StateAway):
    """Another process serves batches by now, and nothing is written."""


class StoredBatch(msgspec.Struct, frozen=True):
    """What the files of one owner are, or may be."""

    files: int
    bytes: int


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """
    Attributes:
        concurrency: Lines under way, of all batches.
        most_file_bytes: Of an input.
        most_lines: Of a batch.
        most_unfinished: Batches of one owner.
        most_stored: Files of one owner.
        keep_seconds: Until a file is deleted, unless its owner says less; batches are forgotten then, too.
    """

    concurrency: int
    most_file_bytes: int
    most_lines: int
    most_unfinished: int
    most_stored: StoredBatch
    keep_seconds: int


class BatchState(Protocol):
    """Contract of what keeps it; all processes that serve the same batches use the same.

    Every method may raise StateAway; those that write LeadLost, where they are the leader's (sharing.py).
    """

    async def has_room(self, owner: str, most: StoredBatch) -> bool:
        """Return whether the files of an owner are fewer than that, and have fewer bytes."""

    async def expect(self, file_id: str, until: float) -> None:
        """A content may be written under that name, which is loose from `until` on; said again, from then on."""

    async def add_file(self, file: StoredFile, most: StoredBatch) -> bool:
        """Add a file that is expected; nothing, where it is loose, or its owner would have more than that."""

    async def file(self, file_id: str) -> StoredFile | None: ...

    async def files(
        self, owner: str, after: str | None, limit: int, *, newest_first: bool, purpose: str | None
    ) -> Sequence[StoredFile] | None:
        """Return None where `after` is no file of the owner's."""

    async def remove_file(self, file_id: str) -> None:
        """Its content is loose now."""

    async def loose(self, now: float, limit: int) -> Sequence[str]:
        """Return names of contents that belong to no file."""

    async def removed(self, file_id: str) -> None:
        """The content of that name is no more."""

    async def outdated(self, now: float, limit: int) -> Sequence[StoredFile]:
        """Return files that are to be deleted, but for the input of what is not finished."""

    async def add_batch(self, batch: BatchObject, most_unfinished: int) -> bool:
        """Return False, and add nothing, where its owner has as many that are not finished."""

    async def batch(self, batch_id: str) -> BatchObject | None: ...

    async def batches(
        self, owner: str, after: str | None, limit: int
    ) -> Sequence[BatchObject] | None:
        """Newest first. Return None where `after` is no batch of the owner's."""

    async def unfinished(self) -> Sequence[BatchObject]:
        """Oldest first."""

    async def reads(self, file_id: str) -> str | None:
        """Return the id of a batch that is not finished and has this input."""

    async def change(
        self, batch_id: str, change: Callable[[BatchObject], BatchObject]
    ) -> BatchObject | None:
        """Put what `change` makes of a batch in its place, in one step; return it.

        `change` may be asked several times, where others change it meanwhile.
        """

    async def add_result(self, batch_id: str, result: LineResult) -> None:
        """Nothing, where there is one of that line."""

    async def done(self, batch_id: str) -> set[int]:
        """Return the numbers of lines that have a result."""

    async def counts(self, batch_id: str) -> tuple[int, int]:
        """Return how many lines have an answer, and how many an error."""

    async def results(
        self, batch_id: str, *, failed: bool, after: int, most_bytes: int
    ) -> Sequence[LineResult]:
        """Return those of lines behind `after`, in their order: one, and more while they are no longer."""

    async def finish(self, batch: BatchObject, files: Sequence[StoredFile]) -> bool:
        """Put a batch that has ended and its files there, and drop its results, in one step.

        Return False, and do nothing, where it has ended before, or one of its files is not expected any more.
        """

    async def forget_batches(self, before: float) -> None:
        """Drop those that were made before that and are finished."""

    async def close(self) -> None:
        """What is asked afterwards opens it again."""
