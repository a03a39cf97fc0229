"""Reading: the lines of an input, read in threads, no more of them than the gateway has memory for.

    room for the longest line --> read up to PIECE_BYTES and one line --> what they do not need is given back

Bodies that are read count as held (front/crowd.py) until `done` is said of them. While half of what the gateway
may hold is held, by whatever, nothing more is read: the other half is for calls and answers.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator
from typing import Final

from pdgate.gateway.batch.archive import Archive
from pdgate.gateway.batch.lines import MOST_AROUND_BYTES, BatchLine, BrokenLine, Reader
from pdgate.gateway.batch.objects import BatchObject
from pdgate.gateway.front.crowd import Crowd

PIECE_BYTES: Final = 1 << 20
MOST_LINES: Final = 256
LOOK_SECONDS: Final = 0.25


class Reading:
    """Reader of the lines of all batches of this process."""

    def __init__(self, archive: Archive, crowd: Crowd, most_body_bytes: Callable[[], int]) -> None:
        self._most_body_bytes = most_body_bytes
        self._archive = archive
        self._crowd = crowd

    async def lines(self, batch: BatchObject) -> AsyncGenerator[BatchLine | BrokenLine]:
        """Each that is taken out counts as held until `done`. Raise FileNotFoundError, OSError."""
        most_bytes = self._most_body_bytes()
        crowd, half = self._crowd, self._crowd.limit_bytes // 2
        room = min(half, PIECE_BYTES + most_bytes + MOST_AROUND_BYTES)
        held = 0
        async with self._archive.opened(batch.input_file_id) as file:
            lines = iter(Reader(file, batch.endpoint, most_bytes))
            try:
                while True:
                    # Memory comes back at the end of calls, which tell of it in no event.
                    while crowd.held_bytes + room > half:  # noqa: ASYNC110
                        await asyncio.sleep(LOOK_SECONDS)
                    crowd.take(room)
                    held = room
                    some = await self._archive.run(_some, lines)
                    size = sum(map(_size, some))
                    crowd.give_back(room - size)
                    held = size
                    if not some:
                        return
                    for line in some:
                        held -= _size(line)
                        yield line
            finally:
                crowd.give_back(held)

    def done(self, line: BatchLine | BrokenLine) -> None:
        """Count a line as held no more."""
        self._crowd.give_back(_size(line))


def _size(line: BatchLine | BrokenLine) -> int:
    return len(line.body) if isinstance(line, BatchLine) else 0


def _some(lines: Iterator[BatchLine | BrokenLine]) -> list[BatchLine | BrokenLine]:
    """The next ones; none at their end."""
    some, size = [], 0
    for line in lines:
        some.append(line)
        size += _size(line)
        if size >= PIECE_BYTES or len(some) == MOST_LINES:
            break
    return some
