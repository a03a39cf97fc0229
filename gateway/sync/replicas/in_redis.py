"""What replicas share in Redis: entries with leases, and a stream that forgets its beginning.

    {pdgate:load}                    set of processes
    {pdgate:load}:<process>          its entry; gone when its lease ends
    {pdgate:prompts}                 data: a batch of one process; at most about MOST_BATCHES of them

One script does both halves of an exchange, so that it is one round trip, and a process that died is
taken off the set by the next look. The braces keep all keys on one node of a Redis cluster. Leases
are kept by Redis, so the clocks of hosts do not matter; one that is longer than any of ours, or
that has no end, is not a lease, and its entry does not count.

Any client of the Redis can write there what it likes, so what is read at once is bounded, in number and
bytes, and what is longer than anything of ours is read as empty.

Each reader has its own place in the stream; one that was away for longer than it reaches has missed
the rest. What a process wrote itself comes back, too, and is known by what is in it.
"""

import secrets
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Final

from redis.exceptions import RedisError

from pdgate.cluster.redis_client import asked, client
from pdgate.gateway.sync.replicas.base import LoadEntries, ReplicaStream

LOAD_KEY: Final = "{pdgate:load}"
PROMPTS_KEY: Final = "{pdgate:prompts}"
FIELD: Final = "data"
ANSWER_SECONDS: Final = 1.0

EXCHANGE: Final = """
local set, lease, most, room = KEYS[1], tonumber(ARGV[2]), tonumber(ARGV[4]), tonumber(ARGV[5])
local own = set .. ':' .. ARGV[1]
if ARGV[3] ~= '' then
  redis.call('SET', own, ARGV[3], 'PX', lease)
  redis.call('SADD', set, ARGV[1])
end
local found = {}
for _, process in ipairs(redis.call('SRANDMEMBER', set, tonumber(ARGV[6]))) do
  if process ~= ARGV[1] and #process <= 64 then
    local key = set .. ':' .. process
    local left = redis.call('PTTL', key)
    if left == -2 then
      redis.call('SREM', set, process)
    else
      local entry = ''
      if left >= 0 and left <= lease and redis.call('TYPE', key)['ok'] == 'string' then
        local bytes = redis.call('STRLEN', key)
        if bytes <= most and bytes <= room then
          entry, room = redis.call('GET', key), room - bytes
        end
      end
      table.insert(found, process)
      table.insert(found, entry)
    end
  end
end
return found
"""
"""ARGV: process, lease in ms, its entry, which is empty if it is to stay as it is; at most so many bytes of an
entry, of all, and so many entries."""

MOST_PROCESSES: Final = 1024
MOST_ENTRY_BYTES: Final = 256 << 10
"""Some 60 for each engine that has calls."""
MOST_BYTES: Final = 4 << 20
"""Of all entries, and of all batches that are read at once."""

MOST_BATCHES: Final = 600
"""At 64 KiB of hashes at most, 40 MB; Redis trims whole nodes of a hundred."""

MOST_BATCH_BYTES: Final = 512 << 10
"""With the names of engines beside the hashes."""

AT_A_TIME: Final = 100
"""Batches that are read at once."""

READ: Final = """
local most, room = tonumber(ARGV[5]), tonumber(ARGV[6])
if ARGV[2] ~= '' then
  redis.call('XADD', KEYS[1], 'MAXLEN', '~', ARGV[3], '*', ARGV[7], ARGV[2])
end
local read = redis.call('XREAD', 'COUNT', ARGV[4], 'STREAMS', KEYS[1], ARGV[1])
local last, news = ARGV[1], {}
for _, entry in ipairs(read and read[1][2] or {}) do
  local data, fields = '', entry[2]
  for at = 1, #fields, 2 do
    if fields[at] == ARGV[7] and #fields[at + 1] <= most then data = fields[at + 1] end
  end
  if #data > room then break end
  last, room = entry[1], room - #data
  table.insert(news, data)
end
return {last, news}
"""
"""ARGV: what was read last, a batch of ours or nothing, as many batches as are kept, and as are read; at most so
many bytes of one, of all; the name of the field."""


class RedisLoadEntries(LoadEntries):
    def __init__(self, url: str, lease_seconds: float, key: str = LOAD_KEY) -> None:
        """Connects with the first exchange; `key` is that of the set."""
        self._key = key
        # Another one for each life of a process: what an earlier one left is not taken over.
        self._process = secrets.token_hex(8)
        self._lease_ms = int(lease_seconds * 1000)
        self._redis = client(url, ANSWER_SECONDS)
        self._script = self._redis.register_script(EXCHANGE)

    async def exchange(self, entry: bytes | None) -> Mapping[str, bytes]:
        most = (MOST_ENTRY_BYTES, MOST_BYTES, MOST_PROCESSES)
        found: list[bytes] = await asked(
            self._script(
                keys=[self._key], args=[self._process, self._lease_ms, entry or b"", *most]
            )
        )
        names = (name.decode(errors="replace") for name in found[::2])
        return dict(zip(names, found[1::2], strict=True))

    async def close(self) -> None:
        # If it cannot be told, the lease ends it.
        with suppress(RedisError, OSError):
            await self._redis.delete(f"{self._key}:{self._process}")
        await self._redis.aclose()


class RedisStream(ReplicaStream):
    def __init__(self, url: str) -> None:
        """Connects with the first exchange."""
        self._read = b"0-0"
        self._redis = client(url, ANSWER_SECONDS)
        self._script = self._redis.register_script(READ)

    async def exchange(self, batch: bytes | None) -> Sequence[bytes]:
        most = (MOST_BATCHES, AT_A_TIME, MOST_BATCH_BYTES, MOST_BYTES, FIELD)
        found = self._script(keys=[PROMPTS_KEY], args=[self._read, batch or b"", *most])
        self._read, news = await asked(found)
        return list(news)

    async def close(self) -> None:
        await self._redis.aclose()
