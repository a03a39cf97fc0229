"""Access to the Redis of batches: some commands at once, each answered within ANSWER_SECONDS, or the state is away.

While it does not answer, nothing waits for it: for AWAY_SECONDS after a failure what is asked fails at once.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from time import monotonic
from typing import Any, Final

from redis.commands.core import AsyncScript
from redis.exceptions import ResponseError

from pdgate.cluster.complaint import Complaint
from pdgate.cluster.directory import StoreAway
from pdgate.cluster.redis_client import asked, client
from pdgate.gateway.batch.redis_scripts import LEADER, LOST
from pdgate.gateway.batch.state import LeadLost, StateAway

Word = str | bytes | int

log = logging.getLogger(__name__)

ANSWER_SECONDS: Final = 5.0
AWAY_SECONDS: Final = 1.0
AT_ONCE: Final = 32
"""Connections."""
RETRY_SECONDS: Final = 5


class BatchRedis:
    """Connects when it is asked for something."""

    def __init__(self, url: str, answer_seconds: float = ANSWER_SECONDS) -> None:
        self._redis = client(url, answer_seconds)
        self._scripts: dict[str, AsyncScript] = {}
        self._free = asyncio.Semaphore(AT_ONCE)
        self._again = 0.0
        self._complaint = Complaint(
            log, "the state of batches", "the state of batches is there again"
        )

    async def run(self, script: str, *words: Word) -> Any:
        """Raise StateAway, LeadLost. What a script that was not answered has done is not known."""
        made = self._scripts.get(script)
        if made is None:
            made = self._scripts[script] = self._redis.register_script(script)
        return await self._answer(lambda: made(keys=[LEADER], args=words))

    async def ask(self, *command: Word) -> Any:
        """Raise StateAway."""
        asks: Any = self._redis.execute_command
        return await self._answer(lambda: asks(*command))

    async def together(self, *commands: Sequence[Word]) -> list[Any]:
        """Return the answers to several in one round trip. Raise StateAway."""
        pipe = self._redis.pipeline(transaction=False)
        for command in commands:
            pipe.execute_command(*command)
        answers: list[Any] = await self._answer(pipe.execute)
        return answers

    async def _answer(self, what: Callable[[], Awaitable[Any]]) -> Any:
        async with self._free:
            if monotonic() < self._again:
                raise self._away()
            try:
                found = await asked(what())
            except StoreAway as error:
                if isinstance(error.__cause__, ResponseError):
                    if str(error.__cause__).startswith(LOST):
                        raise LeadLost("another process serves batches") from None
                else:
                    self._again = monotonic() + AWAY_SECONDS
                self._complaint.about(str(error))
                raise self._away() from error
        self._complaint.over()
        return found

    async def close(self) -> None:
        await self._redis.aclose()

    def _away(self) -> StateAway:
        return StateAway(
            "the state of batches cannot be reached", retry_after_seconds=RETRY_SECONDS
        )
