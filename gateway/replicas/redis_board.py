"""Where processes find each other's entries: one key each, with a lease, and a set of who has one.

    {pdgate:load}                    set of processes
    {pdgate:load}:<process>          its entry; gone when its lease ends

One script does both halves of an exchange, so that it is one round trip, and who died is taken
off the set by whoever looks next. The braces keep all keys on one node of a Redis cluster. Leases
are kept by Redis, so the clocks of hosts do not matter; one that is longer than any of ours, or
that has no end, is not a lease, and its entry counts for nobody.
"""

import secrets
from collections.abc import Mapping
from contextlib import suppress
from typing import Final

import redis.asyncio as redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from pdgate.cluster.cancellable import cancellable
from pdgate.gateway.replicas.board import Board, BoardAway

KEY: Final = "{pdgate:load}"
ANSWER_SECONDS: Final = 1.0

EXCHANGE: Final = """
local set, lease = KEYS[1], tonumber(ARGV[2])
local own = set .. ':' .. ARGV[1]
if ARGV[3] ~= '' then
  redis.call('SET', own, ARGV[3], 'PX', lease)
  redis.call('SADD', set, ARGV[1])
end
local found = {}
for _, process in ipairs(redis.call('SMEMBERS', set)) do
  if process ~= ARGV[1] then
    local key = set .. ':' .. process
    local left = redis.call('PTTL', key)
    if left == -2 then
      redis.call('SREM', set, process)
    elseif left >= 0 and left <= lease then
      table.insert(found, process)
      table.insert(found, redis.call('GET', key))
    else
      table.insert(found, process)
      table.insert(found, '')
    end
  end
end
return found
"""
"""ARGV: process, lease in ms, its entry, which is empty if it is to stay as it is."""


class RedisBoard(Board):
    def __init__(self, url: str, lease_seconds: float) -> None:
        """Connects with the first exchange."""
        # Another one for each life of a process: what an earlier one left is not taken over.
        self._process = secrets.token_hex(8)
        self._lease_ms = int(lease_seconds * 1000)
        # Whoever exchanges will do so again.
        self._redis = redis.Redis.from_url(
            url,
            socket_timeout=ANSWER_SECONDS,
            socket_connect_timeout=ANSWER_SECONDS,
            retry=Retry(NoBackoff(), 0),
        )
        self._script = self._redis.register_script(EXCHANGE)

    async def exchange(self, entry: bytes | None) -> Mapping[str, bytes]:
        try:
            found: list[bytes] = await cancellable(
                self._script(keys=[KEY], args=[self._process, self._lease_ms, entry or b""])
            )
        except (RedisError, OSError) as error:
            raise BoardAway(_why(error)) from error
        names = (name.decode(errors="replace") for name in found[::2])
        return dict(zip(names, found[1::2], strict=True))

    async def close(self) -> None:
        # If it cannot be told, the lease ends it.
        with suppress(RedisError, OSError):
            await self._redis.delete(f"{KEY}:{self._process}")
        await self._redis.aclose()


def _why(error: Exception) -> str:
    return f"Redis: {error or type(error).__name__}"
