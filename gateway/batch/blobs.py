"""Contents of files, by name, in a folder of the local disk.

A content is there when it is whole: it is written beside its place, and moved there at the end. A
process that dies meanwhile leaves a `.part` behind, which `sweep` removes. All of this waits for the disk:
it is called in threads.
"""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from pathlib import Path
from typing import BinaryIO, Final, Protocol

PART: Final = ".part"
ABANDONED_SECONDS: Final = 3600
"""After which no process writes it any more: a client has five minutes for a body."""


class Blobs(Protocol):
    """Contract of what keeps contents. Each method may raise OSError."""

    def write(self, name: str) -> AbstractContextManager[BinaryIO]:
        """A block: the content is there at its end, and none of it where it fails."""

    def read(self, name: str) -> BinaryIO:
        """Raise FileNotFoundError."""

    def remove(self, name: str) -> None:
        """Nothing, where it is not there."""

    def sweep(self) -> None:
        """Remove what was left half written."""


class LocalBlobs:
    """See `Blobs`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @contextmanager
    def write(self, name: str) -> Iterator[BinaryIO]:
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        part = self._folder / f"{name}{PART}"
        try:
            with part.open("wb") as file:
                os.chmod(part, 0o600)
                yield file
                file.flush()
                os.fsync(file.fileno())
            part.replace(self._folder / name)
        except BaseException:
            part.unlink(missing_ok=True)
            raise

    def read(self, name: str) -> BinaryIO:
        return (self._folder / name).open("rb")

    def remove(self, name: str) -> None:
        (self._folder / name).unlink(missing_ok=True)

    def sweep(self) -> None:
        before = time.time() - ABANDONED_SECONDS
        for part in self._folder.glob(f"*{PART}"):
            if part.stat().st_mtime < before:
                part.unlink(missing_ok=True)


Write = Callable[[bytes], Awaitable[None]]


@asynccontextmanager
async def written(blobs: Blobs, name: str) -> AsyncIterator[Write]:
    """A block in which a content is written piece by piece, each in a thread."""
    block = blobs.write(name)
    file = await asyncio.to_thread(block.__enter__)
    try:
        yield lambda piece: asyncio.to_thread(_write, file, piece)
    except BaseException as error:
        # Also of a task that is cancelled: what is half written is removed first.
        await asyncio.shield(asyncio.to_thread(block.__exit__, type(error), error, None))
        raise
    await asyncio.shield(asyncio.to_thread(block.__exit__, None, None, None))


def _write(file: BinaryIO, piece: bytes) -> None:
    file.write(piece)
