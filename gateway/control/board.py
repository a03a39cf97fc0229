"""Board on which the processes of a gateway say what is held, and which version of that each has taken.

    AloneBoard     one process: in memory
    FolderBoard    workers: a file that is replaced, and a word of each in a file that it keeps locked
    RedisBoard     workers of all replicas (redis_board.py)

A process that ends, however, is no longer among the words: its lock, or its lease, ends with it.
"""

import asyncio
import fcntl
import os
import zlib
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from time import monotonic
from typing import Final

from pdgate.gateway.sync.shared_store import FileStore
from pdgate.gateway.sync.workers.folder import Folder
from pdgate.protocols.errors import GatewayError

NAME: Final = "control"
WORD_BYTES: Final = 16 << 10
TURN_SECONDS: Final = 10.0
"""For which one that controls engines waits for another one's end."""
PAUSE_SECONDS: Final = 0.05


class ControlBusy(GatewayError):
    """Another request changes the engines."""

    status, code = 503, "control_busy"


class ControlBoard(ABC):
    """Store of held models, as one process sees it; all raise StoreAway where it cannot be reached."""

    @abstractmethod
    async def read(self) -> bytes | None:
        """What is pinned; None if nothing is."""

    @abstractmethod
    async def pin(self, state: bytes) -> None: ...

    @abstractmethod
    async def tell(self, word: bytes) -> None:
        """Our word, until the next one, for as long as we live."""

    @abstractmethod
    async def words(self) -> Sequence[bytes]:
        """Those of all others; empty for one that has said nothing yet, or says something now."""

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """A block in which no other process changes anything. Raises ControlBusy."""
        until = monotonic() + TURN_SECONDS
        while not await self._begin_turn():
            if monotonic() > until:
                raise ControlBusy(
                    "another request changes the engines; ask again", retry_after_seconds=5
                )
            await asyncio.sleep(PAUSE_SECONDS)
        try:
            yield
        finally:
            await self._end_turn()

    @abstractmethod
    async def _begin_turn(self) -> bool: ...

    @abstractmethod
    async def _end_turn(self) -> None: ...

    def close(self) -> None:
        """Take this process off the board for good."""
        return

    async def leave(self) -> None:
        """Take this process off the board for now."""
        return


class AloneBoard(ControlBoard):
    def __init__(self) -> None:
        self._pinned: bytes | None = None
        self._taken = False

    async def read(self) -> bytes | None:
        return self._pinned

    async def pin(self, state: bytes) -> None:
        self._pinned = state

    async def tell(self, word: bytes) -> None:
        return

    async def words(self) -> Sequence[bytes]:
        return ()

    async def _begin_turn(self) -> bool:
        taken, self._taken = self._taken, True
        return not taken

    async def _end_turn(self) -> None:
        self._taken = False


class FolderBoard(ControlBoard):
    """
    <folder>/control.pinned         what is held
    <folder>/control.lock           locked by the process whose turn it is
    <folder>/<process>.control      its word, behind its length and checksum
    """

    def __init__(self, folder: Path) -> None:
        """Raises OSError if there is no room in the folder."""
        self._store = FileStore(folder / f"{NAME}.pinned")
        self._lock = folder / f"{NAME}.lock"
        self._words = Folder(folder, NAME, WORD_BYTES)
        self._turn: int | None = None

    async def read(self) -> bytes | None:
        return await self._store.read()

    async def pin(self, state: bytes) -> None:
        await self._store.pin(state)

    async def tell(self, word: bytes) -> None:
        memory = self._words.memory
        framed = _framed(word)
        memory[: len(framed)] = framed

    async def words(self) -> Sequence[bytes]:
        return [_word(bytes(memory)) for memory in self._words.others().values()]

    async def _begin_turn(self) -> bool:
        if self._turn is not None:
            return False
        opened = os.open(self._lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(opened)
            return False
        self._turn = opened
        return True

    async def _end_turn(self) -> None:
        turn, self._turn = self._turn, None
        if turn is not None:
            os.close(turn)

    def close(self) -> None:
        self._words.close()


def _framed(word: bytes) -> bytes:
    """Raises ValueError for one that is too long."""
    framed = len(word).to_bytes(4, "little") + zlib.crc32(word).to_bytes(4, "little") + word
    if len(framed) > WORD_BYTES:
        raise ValueError("too much is held to say so")
    return framed


def _word(memory: bytes) -> bytes:
    """Empty for one that is just being written."""
    length = int.from_bytes(memory[:4], "little")
    word = memory[8 : 8 + length]
    return word if zlib.crc32(word) == int.from_bytes(memory[4:8], "little") else b""
