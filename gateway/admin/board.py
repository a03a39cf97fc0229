"""A value that several processes share: pinned by one, seen by all a moment later.

It is looked at every second or so rather than announced, because a look that failed can be
made again, and an announcement that was missed cannot.
"""

import asyncio
from abc import ABC, abstractmethod
from pathlib import Path

from pdgate.protocols.errors import GatewayError


class BoardAway(Exception):
    """The board cannot be reached; the message says why, for operators."""


class BoardUnavailable(GatewayError):
    """Nothing has changed, or not for sure: saying it again is safe."""

    status, code = 503, "not_shared"


class Board(ABC):
    @abstractmethod
    async def read(self) -> bytes | None:
        """What is pinned; None if nothing is. Raises BoardAway."""

    @abstractmethod
    async def pin(self, value: bytes) -> None:
        """Raises BoardAway, and then it may be pinned or not."""

    async def close(self) -> None:
        return


class FileBoard(Board):
    """For the workers of one gateway."""

    def __init__(self, path: Path) -> None:
        self._path = path

    async def read(self) -> bytes | None:
        try:
            return await asyncio.to_thread(self._path.read_bytes)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise BoardAway(str(error)) from error

    async def pin(self, value: bytes) -> None:
        try:
            await asyncio.to_thread(self._replace, value)
        except OSError as error:
            raise BoardAway(str(error)) from error

    def _replace(self, value: bytes) -> None:
        # Nobody is to read half of it.
        unfinished = self._path.with_suffix(".new")
        unfinished.write_bytes(value)
        unfinished.replace(self._path)
