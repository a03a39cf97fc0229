"""Lease in Redis on serving batches: the lead of one process of all replicas.

    take   a token of its own, where no other one's lease lasts
    hold   renewed every RENEW_SECONDS
    write  refused, in the same step in which it would be done, without the token (redis_scripts.py)

A process that is stopped for longer than its lease, or sees Redis no more, may think that it leads while another does:
its first write tells it otherwise, and has done nothing. A lease that is over but that no process has taken is still its
owner's. So a Redis that was away costs no line: the others wait, when Redis is back, until the leader has had time to
renew. Times are those of Redis' clock.
"""

import asyncio
import secrets
from contextlib import suppress
from time import monotonic
from typing import Final

from pdgate.gateway.batch import redis_scripts as scripts
from pdgate.gateway.batch.redis_access import BatchRedis
from pdgate.gateway.batch.state import LeadLost, StateAway

LEASE_SECONDS: Final = 10.0
RENEW_SECONDS: Final = 2.5
ANSWER_SECONDS: Final = 2.0
RESIGN_SECONDS: Final = 1.0
_NO_LEAD: Final = "none"


class RedisLease:
    """See `Lead`.

    Attributes:
        token: That its process writes with; one of no lease where it does not lead.
    """

    def __init__(self, url: str) -> None:
        # Its own connection: it is not to wait behind large answers.
        self._redis = BatchRedis(url, ANSWER_SECONDS)
        self.token = _NO_LEAD
        self._lost = asyncio.Event()
        self._was_away = False
        self._not_before = 0.0

    async def take(self) -> bool:
        if monotonic() < self._not_before:
            return False
        try:
            if self._was_away and await self._is_anyones():
                self._not_before = monotonic() + LEASE_SECONDS
                self._was_away = False
                return False
            token = secrets.token_hex(16)
            if not await self._redis.run(scripts.LEAD, token, _LEASE_MS):
                return False
        except StateAway:
            self._was_away = True
            raise
        self._was_away = False
        self._lost.clear()
        self.token = token
        return True

    async def hold(self) -> None:
        while not self._lost.is_set():
            try:
                async with asyncio.timeout(RENEW_SECONDS):
                    await self._lost.wait()
            except TimeoutError:
                await self._renew()
        self.token = _NO_LEAD

    async def resign(self) -> None:
        token, self.token = self.token, _NO_LEAD
        if token != _NO_LEAD:
            # If it cannot be told, the lease ends by itself.
            with suppress(StateAway, TimeoutError):
                async with asyncio.timeout(RESIGN_SECONDS):
                    await self._redis.run(scripts.RESIGN, token)
        await self._redis.close()

    def lose(self) -> None:
        """A write was refused."""
        self._lost.set()

    async def _renew(self) -> None:
        try:
            await self._redis.run(scripts.HOLD, self.token, _LEASE_MS)
        except LeadLost:
            self._lost.set()
        except StateAway:
            # Another may lead by now. What this process has is refused then, and kept otherwise.
            return

    async def _is_anyones(self) -> bool:
        return bool(await self._redis.ask("EXISTS", scripts.LEADER))


_LEASE_MS: Final = int(LEASE_SECONDS * 1000)
