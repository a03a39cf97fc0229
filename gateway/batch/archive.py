"""Archive: the contents of files for the event loop, which waits for no disk and no storage.

Its threads are its own: a storage that hangs keeps THREADS of them, and none of those that asyncio lends to
the rest of the gateway (large bodies, names of hosts). They are daemons: a process ends whatever they wait for.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from threading import Thread
from typing import Any, BinaryIO, Final, TypeVar

from pdgate.gateway.batch.blobs import Blobs

T = TypeVar("T")

THREADS: Final = 8
PLACE_SECONDS: Final = 30.0
"""For one of them to be free."""
OPEN_SECONDS: Final = 60.0
"""For a content to be opened; how long the rest may take is the storage's affair."""
NAME: Final = "pdgate-batch-files"

Write = Callable[[bytes], Awaitable[None]]


class Archive:
    """See `Blobs`, whose errors these methods raise; and TimeoutError, which is an OSError as well."""

    def __init__(self, blobs: Blobs) -> None:
        self._blobs = blobs
        self._free = asyncio.Semaphore(THREADS)

    async def run(self, work: Callable[..., T], *given: Any) -> T:
        """Return what it returns. It goes on, in its thread, where the caller is cancelled."""
        async with asyncio.timeout(PLACE_SECONDS):
            await self._free.acquire()
        loop = asyncio.get_running_loop()
        done: asyncio.Future[T] = loop.create_future()

        def over(settle: Callable[[], None]) -> None:
            self._free.release()
            if not done.done():
                settle()

        def job() -> None:
            settle: Callable[[], None]
            try:
                settle = partial(done.set_result, work(*given))
            # Whatever it is, it is the caller's.
            except BaseException as error:  # noqa: BLE001
                settle = partial(done.set_exception, error)
            # The loop is closed where the process ends.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(over, settle)

        Thread(target=job, name=NAME, daemon=True).start()
        return await done

    @asynccontextmanager
    async def written(self, name: str) -> AsyncIterator[Write]:
        """A block in which a content is written; it is there at its end, and none of it where it fails.

        Where it is cancelled at its very end, the content may be there even so.
        """
        block = self._blobs.write(name)
        file = await self.run(block.__enter__)
        try:
            yield lambda piece: self.run(_write, file, piece)
        except BaseException as error:
            await asyncio.shield(self.run(block.__exit__, type(error), error, None))
            raise
        await asyncio.shield(self.run(block.__exit__, None, None, None))

    @asynccontextmanager
    async def opened(self, name: str) -> AsyncIterator[BinaryIO]:
        """A block. Raise FileNotFoundError."""
        opening = asyncio.ensure_future(self.run(self._blobs.read, name))
        try:
            async with asyncio.timeout(OPEN_SECONDS):
                file = await asyncio.shield(opening)
        except BaseException:
            opening.add_done_callback(_close)
            raise
        try:
            yield file
        finally:
            _close_aside(file)

    async def remove(self, name: str) -> None:
        await self.run(self._blobs.remove, name)

    async def sweep(self) -> None:
        await self.run(self._blobs.sweep)


def _close(opening: "asyncio.Future[BinaryIO]") -> None:
    """A content that is open too late."""
    if not opening.cancelled() and opening.exception() is None:
        _close_aside(opening.result())


def _close_aside(file: BinaryIO) -> None:
    """It waits for what is being read."""
    Thread(target=file.close, name=NAME, daemon=True).start()


def _write(file: BinaryIO, piece: bytes) -> None:
    file.write(piece)
