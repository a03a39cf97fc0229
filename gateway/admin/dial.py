"""The thresholds in force: those that were configured, until somebody says otherwise.

    PUT --> board --> in force here at once, elsewhere at the next look
                '---> looked at every LOOK_SECONDS by every process that shares it

What is pinned already when a process starts counts for it too: it was said after the
configuration was written. Without a board a process is on its own.
"""

import asyncio
import logging
from collections.abc import Callable

from pydantic import ValidationError

from pdgate.gateway.admin.board import Board, BoardAway
from pdgate.gateway.config.settings import Disaggregation

log = logging.getLogger(__name__)

LOOK_SECONDS = 1.0


class Dial:
    """
    Attributes:
        section: What is in force.
        shared: Whether other processes hear of it.
        reachable: Whether the board answered the last look, once it did; None until then.
    """

    def __init__(
        self,
        section: Disaggregation,
        apply: Callable[[Disaggregation], None],
        board: Board | None = None,
        look_seconds: float = LOOK_SECONDS,
    ) -> None:
        """`apply` has been done for `section` already."""
        self.section = section
        self._apply = apply
        self._board = board
        self._look_seconds = look_seconds
        self._complaint = ""
        self.reachable: bool | None = None

    @property
    def shared(self) -> bool:
        return self._board is not None

    async def put(self, section: Disaggregation) -> None:
        """Raises BoardAway, and then nothing has changed here."""
        if self._board is not None:
            await self._board.pin(section.model_dump_json().encode())
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
                self._take(Disaggregation.model_validate_json(found, strict=True))
        except BoardAway as error:
            # Not since the start is told apart from not any more.
            self.reachable = None if self.reachable is None else False
            self._complain(str(error))
        except ValidationError as error:
            self._complain(str(error))
        else:
            if self._complaint:
                log.info("the thresholds that are shared can be read again")
            self._complaint = ""

    def _take(self, section: Disaggregation) -> None:
        if section != self.section:
            log.info("calls are split by %s from now on", section)
            self.section = section
            self._apply(section)

    def _complain(self, why: str) -> None:
        """Once per reason: an outage is many looks."""
        if why != self._complaint:
            log.warning("the thresholds that are shared cannot be read: %s", why)
        self._complaint = why
