"""What replicas share in Redis: entries with leases, and a stream that forgets its beginning.

    {pdgate:load}                    set of processes
    {pdgate:load}:<process>          its entry; gone when its lease ends
    {pdgate:prompts}                 data: a batch of one process; at most about MOST_BATCHES of them

One script does both halves of an exchange, so that it is one round trip, and a process that died is
taken off the set by the next look. The braces keep all keys on one node of a Redis cluster. Leases
are kept by Redis, so the clocks of hosts do not matter; one that is longer than any of ours, or
that has no end, is not a lease, and its entry does not count.

Each reader has its own place in the stream; one that was away for longer than it reaches has missed
the rest. What a process wrote itself comes back, too, and is known by what is in it.
"""

import secrets
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from redis.exceptions import RedisError

from pdgate.cluster.redis_client import asked, client
from pdgate.gateway.sync.replicas.base import LoadEntries, Stream

LOAD_KEY: Final = "{pdgate:load}"
PROMPTS_KEY: Final = "{pdgate:prompts}"
FIELD: Final = b"data"
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

MOST_BATCHES: Final = 600
"""At 64 KiB at most, 40 MB; Redis trims whole nodes of a hundred."""

AT_A_TIME: Final = 100
"""Batches that are read at once: so long a process does nothing else."""


class RedisLoadEntries(LoadEntries):
    def __init__(self, url: str, lease_seconds: float) -> None:
        """Connects with the first exchange."""
        # Another one for each life of a process: what an earlier one left is not taken over.
        self._process = secrets.token_hex(8)
        self._lease_ms = int(lease_seconds * 1000)
        self._redis = client(url, ANSWER_SECONDS)
        self._script = self._redis.register_script(EXCHANGE)

    async def exchange(self, entry: bytes | None) -> Mapping[str, bytes]:
        found: list[bytes] = await asked(
            self._script(keys=[LOAD_KEY], args=[self._process, self._lease_ms, entry or b""])
        )
        names = (name.decode(errors="replace") for name in found[::2])
        return dict(zip(names, found[1::2], strict=True))

    async def close(self) -> None:
        # If it cannot be told, the lease ends it.
        with suppress(RedisError, OSError):
            await self._redis.delete(f"{LOAD_KEY}:{self._process}")
        await self._redis.aclose()


class RedisStream(Stream):
    def __init__(self, url: str) -> None:
        """Connects with the first exchange."""
        self._read = b"0-0"
        self._redis = client(url, ANSWER_SECONDS)

    async def exchange(self, batch: bytes | None) -> Sequence[bytes]:
        found = await asked(self._both(batch))
        news = [one for _, entries in found[-1] for one in entries]
        if news:
            self._read = news[-1][0]
        return [fields.get(FIELD, b"") for _, fields in news]

    async def _both(self, batch: bytes | None) -> list[Any]:
        async with self._redis.pipeline(transaction=False) as both:
            if batch is not None:
                both.xadd(PROMPTS_KEY, {FIELD: batch}, maxlen=MOST_BATCHES, approximate=True)
            both.xread({PROMPTS_KEY: self._read}, count=AT_A_TIME)
            found: list[Any] = await both.execute()
        return found

    async def close(self) -> None:
        await self._redis.aclose()
