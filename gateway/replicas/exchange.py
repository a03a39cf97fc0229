"""Tells the replicas what we have in flight, and takes in what they have, every 40 ms.

    what we told differs from what is   tell it                     others know it within 100 ms
    it does not                         every RENEW_SECONDS, as the lease would end
    Redis does not answer               others count until their leases must have ended, then not;
                                        it is asked again every AWAY_SECONDS, and told all at once

No call waits for any of this. Where there is so much to read that it takes time, it is done less
often: SHARE of a core at most, so views are behind by more in very large fleets.
"""

import asyncio
import logging
from collections.abc import Callable
from enum import StrEnum
from typing import Final

from pdgate.gateway.replicas.board import Board, BoardAway
from pdgate.gateway.replicas.load import FarLoad

log = logging.getLogger(__name__)

EXCHANGE_SECONDS: Final = 0.04
LEASE_SECONDS: Final = 2.0
"""How long a replica that died still counts, at most."""
RENEW_SECONDS: Final = 0.5
AWAY_SECONDS: Final = 0.25
SHARE: Final = 1 / 10


class State(StrEnum):
    """
    WAITING: Redis has not answered since this process started.
    DEGRADED: It does not answer, so only our own calls are known, once leases have ended.
    CURRENT: It answers.
    """

    WAITING = "waiting"
    DEGRADED = "degraded"
    CURRENT = "current"


class Exchange:
    """
    Attributes:
        load: What has been heard.
        state: Whether anything is.
        losses: How often Redis was lost.
    """

    def __init__(
        self,
        load: FarLoad,
        board: Board,
        clock: Callable[[], float],
    ) -> None:
        self.load = load
        self.state = State.WAITING
        self.losses = 0
        self._board = board
        self._clock = clock
        self._told: bytes | None = None
        self._told_at = self._heard_at = clock()

    async def run(self) -> None:
        """Until cancelled."""
        task = asyncio.current_task()
        assert task is not None
        try:
            # Asked for, as redis-py can swallow a cancellation that hits it while it connects.
            while not task.cancelling():
                seconds = await self.once()
                await asyncio.sleep(seconds)
        finally:
            self.load.forget()
            await self._board.close()

    async def once(self) -> float:
        """Seconds until the next one."""
        now = self._clock()
        entry = self.load.told()
        news = entry if entry != self._told or now - self._told_at >= RENEW_SECONDS else None
        worked = self._clock() - now
        try:
            entries = await self._board.exchange(news)
        except BoardAway as away:
            self._is_away(away)
            return AWAY_SECONDS
        if news is not None:
            self._told, self._told_at = news, now
        self._heard_at = now
        self._answers()
        began = self._clock()
        self.load.take_in(entries)
        worked += self._clock() - began
        return max(EXCHANGE_SECONDS, worked / SHARE)

    def _is_away(self, why: BoardAway) -> None:
        # Whatever comes back may have lost our entry.
        self._told = None
        if self.state is State.CURRENT:
            self.state = State.DEGRADED
            self.losses += 1
            log.warning("replicas cannot tell each other their load: %s", why)
        if self._clock() - self._heard_at >= LEASE_SECONDS:
            self.load.forget()

    def _answers(self) -> None:
        if self.state is State.DEGRADED:
            log.info("replicas tell each other their load again")
        self.state = State.CURRENT
