"""Worker's side of its line: takes other settings when all workers can, ends with its parent."""

import asyncio
import logging
import os
import threading
from collections.abc import Callable
from itertools import count
from multiprocessing.connection import Connection
from typing import Any, Final

from pdgate.gateway.config import ConfigError, Settings
from pdgate.gateway.lifecycle import line
from pdgate.gateway.lifecycle.drain import Drain
from pdgate.gateway.lifecycle.line import ControlLine, Message
from pdgate.gateway.lifecycle.reload import Prepared, Reload

log = logging.getLogger(__name__)

ANSWER_SECONDS: Final = 30.0
"""For the parent, which gives workers 10 s to prepare, and may be busy with a reload already."""

ORPHANED: Final = 4
"""Exit status of a worker whose parent ended before it served."""


class Worker:
    """
    Attributes:
        orphaned: Called in the event loop when the parent has ended without a word.
    """

    def __init__(self, connection: "Connection[Any, Any]") -> None:
        """To be called first of all: from now on the parent knows that we live."""
        self.orphaned: Callable[[], None] = _nothing
        self._loop: asyncio.AbstractEventLoop | None = None
        self._drain: Drain
        self._reload: Reload
        self._number = -1
        self._prepared: Prepared | None = None
        self._asked: dict[int, asyncio.Future[list[str]]] = {}
        self._tickets = count()
        self._begins = threading.Lock()
        self._line = ControlLine(connection, self._heard)

    def take_part(self, drain: Drain, reload: Reload) -> None:
        """Take part in drains and reloads, in the event loop, once all that can be changed is there."""
        self._drain, self._reload = drain, reload
        drain.pass_on = lambda: self._line.say(line.DRAIN)
        reload.request = self._ask
        with self._begins:
            self._loop = asyncio.get_running_loop()
        self._line.say(line.READY)

    def _heard(self, message: Message | None) -> None:
        """In the line's thread."""
        if message is not None and message[0] == line.PING:
            self._line.say(line.PONG)
            return
        with self._begins:
            loop = self._loop
        if loop is None:
            # No call is served yet, so none is lost. The parent says nothing else so early.
            if message is None:
                os._exit(ORPHANED)
            return
        try:
            loop.call_soon_threadsafe(self._act, message)
        except RuntimeError:
            # The loop is closed: we have ended.
            return

    def _act(self, message: Message | None) -> None:
        match message:
            case None:
                log.error("the parent process has ended, so this worker ends after its calls")
                self._drain.begin()
                self.orphaned()
            case (line.PREPARE, number, settings):
                self._line.say(line.PREPARED, number, self._prepare(number, settings))
            case (line.COMMIT, number) if number == self._number and self._prepared is not None:
                prepared, self._prepared = self._prepared, None
                self._reload.put_in_force(prepared)
            case (line.ABANDON, why):
                self._prepared = None
                self._reload.refused(why)
            case (line.ANSWER, ticket, keys, why):
                self._answer(ticket, keys, why)

    def _prepare(self, number: int, settings: str) -> str:
        """Why not; empty if it can be."""
        self._number, self._prepared = number, None
        try:
            self._prepared = self._reload.prepare(Settings.model_validate_json(settings))
        except ConfigError as error:
            return str(error) or "it cannot be taken"
        # A bug of ours in one part must refuse the whole, in all workers.
        except Exception as error:
            log.exception("the configuration could not be prepared")
            return f"a worker failed over it: {error!r}"
        return ""

    async def _ask(self) -> list[str]:
        """What POST /admin/reload does here. Raises ConfigError."""
        ticket = next(self._tickets)
        answer: asyncio.Future[list[str]] = asyncio.get_running_loop().create_future()
        self._asked[ticket] = answer
        self._line.say(line.ASK, ticket)
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                return await answer
        except TimeoutError:
            raise ConfigError("the parent process does not answer; see its log") from None
        finally:
            del self._asked[ticket]

    def _answer(self, ticket: int, keys: list[str], why: str) -> None:
        asked = self._asked.get(ticket)
        if asked is None or asked.done():
            return
        if why:
            asked.set_exception(ConfigError(why))
        else:
            asked.set_result(keys)


def _nothing() -> None: ...
