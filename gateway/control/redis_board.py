"""Board in the Redis that replicas share: a key, a turn with a lease, and a word of each process with its lease.

    pdgate:control              what is held
    pdgate:control:turn         the process whose turn it is; renewed while it is
    {pdgate:control-words}...   in_redis.py's entries, one for each process

A process that does not get to a look for LEASE_SECONDS is not waited for; it reads what is held before it
takes another call.
"""

import asyncio
import secrets
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from pdgate.cluster.directory import StoreAway
from pdgate.cluster.redis_client import asked, client
from pdgate.gateway.control.board import ControlBoard
from pdgate.gateway.sync.replicas.in_redis import RedisLoadEntries
from pdgate.gateway.sync.shared_store import ANSWER_SECONDS, RedisStore

KEY: Final = "pdgate:control"
TURN: Final = f"{KEY}:turn"
WORDS: Final = "{pdgate:control-words}"
LEASE_SECONDS: Final = 15.0
RENEW_SECONDS: Final = 3.0

END: Final = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end"
RENEW: Final = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('PEXPIRE', KEYS[1], ARGV[2]) end"


class RedisBoard(ControlBoard):
    def __init__(self, url: str) -> None:
        """Connects with the first look."""
        self._store = RedisStore(url, KEY)
        self._entries = RedisLoadEntries(url, LEASE_SECONDS, WORDS)
        self._redis = client(url, ANSWER_SECONDS)
        self._name = secrets.token_hex(8)
        self._renewing: asyncio.Task[None] | None = None

    async def read(self) -> bytes | None:
        return await self._store.read()

    async def pin(self, state: bytes) -> None:
        await self._store.pin(state)

    async def tell(self, word: bytes) -> None:
        await self._entries.exchange(word)

    async def words(self) -> Sequence[bytes]:
        return list((await self._entries.exchange(None)).values())

    async def _begin_turn(self) -> bool:
        if self._renewing is not None:
            return False
        lease_ms = int(LEASE_SECONDS * 1000)
        if not await asked(self._redis.set(TURN, self._name, nx=True, px=lease_ms)):
            return False
        self._renewing = asyncio.create_task(self._renew(lease_ms), name="control-turn")
        return True

    async def _renew(self, lease_ms: int) -> None:
        script = self._redis.register_script(RENEW)
        while True:
            await asyncio.sleep(RENEW_SECONDS)
            with suppress(StoreAway):
                await asked(script(keys=[TURN], args=[self._name, lease_ms]))

    async def _end_turn(self) -> None:
        renewing, self._renewing = self._renewing, None
        if renewing is not None:
            renewing.cancel()
        with suppress(StoreAway):
            await asked(self._redis.register_script(END)(keys=[TURN], args=[self._name]))

    async def leave(self) -> None:
        await self._entries.close()
        await self._store.close()
        await self._redis.aclose()
