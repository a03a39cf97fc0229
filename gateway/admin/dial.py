"""What operators set while the gateway runs: as it was configured, until somebody says otherwise.

    PUT --> board --> in force here at once, elsewhere at the next look
                '---> looked at every LOOK_SECONDS by every process that shares it

What is pinned already when a process starts counts for it too: it was said after the
configuration was written. Without a board a process is on its own.
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Generic, TypeVar

from pydantic import ValidationError

from pdgate.gateway.admin.board import Board, BoardAway
from pdgate.gateway.config.sections import Section

log = logging.getLogger(__name__)

LOOK_SECONDS = 1.0


S = TypeVar("S", bound=Section)


class Dial(Generic[S]):
    """
    Attributes:
        section: What is in force.
        shared: Whether other processes hear of it.
        reachable: Whether the board answered the last look, once it did; None until then.
    """

    def __init__(
        self,
        section: S,
        apply: Callable[[S], None],
        board: Board | None = None,
        look_seconds: float = LOOK_SECONDS,
        *,
        name: str = "thresholds",
    ) -> None:
        """`apply` has been done for `section` already; `name` is for the log."""
        self.section = section
        self._apply = apply
        self._board = board
        self._look_seconds = look_seconds
        self._name = name
        self._said = False
        self._complaint = ""
        self.reachable: bool | None = None

    @property
    def shared(self) -> bool:
        return self._board is not None

    def configure(self, section: S) -> None:
        """The configuration says this now; what an operator has said while we ran goes before."""
        if not self._said:
            self._take(section)

    async def change(self, to: Callable[[S], S]) -> None:
        """As `put`, but from what is pinned now, which another process may have said just before.

        Of two changes in the same few milliseconds the later one can undo the other.
        """
        before = self.section
        if self._board is not None and (found := await self._board.read()) is not None:
            # Nonsense is no reason not to say something better.
            with suppress(ValidationError):
                before = self._parsed(found)
        await self.put(to(before))

    async def put(self, section: S) -> None:
        """Raises BoardAway, and then nothing has changed here."""
        if self._board is not None:
            await self._board.pin(section.model_dump_json().encode())
        self._said = True
        self._take(section)

    async def follow(self) -> None:
        """Until cancelled."""
        if self._board is None:
            return
        task = asyncio.current_task()
        assert task is not None
        try:
            # Asked for, as redis-py can swallow a cancellation that hits it while it connects.
            while not task.cancelling():
                await self._look(self._board)
                await asyncio.sleep(self._look_seconds)
        finally:
            await self._board.close()

    async def _look(self, board: Board) -> None:
        try:
            found = await board.read()
            self.reachable = True
            if found is not None:
                self._take(self._parsed(found))
                self._said = True
        except BoardAway as error:
            # Not since the start is told apart from not any more.
            self.reachable = None if self.reachable is None else False
            self._complain(str(error))
        except ValidationError as error:
            self._complain(str(error))
        else:
            if self._complaint:
                log.info("the %s that are shared can be read again", self._name)
            self._complaint = ""

    def _parsed(self, found: bytes) -> S:
        """Raises ValidationError."""
        return type(self.section).model_validate_json(found, strict=True)

    def _take(self, section: S) -> None:
        if section != self.section:
            log.info("the %s from now on: %s", self._name, section)
            self.section = section
            self._apply(section)

    def _complain(self, why: str) -> None:
        """Once per reason: an outage is many looks."""
        if why != self._complaint:
            log.warning("the %s that are shared cannot be read: %s", self._name, why)
        self._complaint = why
