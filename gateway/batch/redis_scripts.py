"""The steps on Redis that must be one: each is a Lua script, which Redis runs alone.

    {pdgate:batches}:leader             hash: token of the process that serves batches, until when (ms, Redis' clock)
    {...}:file, :batch                  hashes: id -> JSON
    {...}:files:OWNER, :batches:OWNER   sorted sets: ids, by `seq`, which counts all that was ever added
    {...}:bytes                         hash: owner -> bytes of its files
    {...}:expiring                      sorted set: ids of files, by when they are deleted (s)
    {...}:loose                         sorted set: names of contents that are of no file, by when they are removed (s)
    {...}:unfinished                    sorted set: ids of batches, by `seq`
    {...}:unfinished:OWNER              set of them
    {...}:reading:FILE                  set of them: this is their input
    {...}:ended                         sorted set: ids of the other batches, by when they were made (s)
    {...}:rows:BATCH                    hash: number of a line -> what is written of it, until the batch has ended
    {...}:ok:BATCH, :failed:BATCH       sorted sets: those numbers

A script that writes begins with the token of its caller's lead; without it nothing is written (LOST). Routes write
with an empty one, and need no lead. The braces keep all keys on one node of a cluster.

A Redis that is full refuses a script whose first write may take memory. What ends a batch makes room, so what
it needs begins with one that takes none: HDEL, ZREM, UNLINK.

Source: Redis 7.0, script.c, scriptVerifyOOM and scriptVerifyWriteCommandAllow; commands HSETNX, ZRANGEBYSCORE, UNLINK, TIME.
"""

from typing import Final

PREFIX: Final = "{pdgate:batches}:"
LEADER: Final = f"{PREFIX}leader"
LOST: Final = "NOTLEADING"
"""How the error begins that a write is refused with."""

_NAMES: Final = f"local P = '{PREFIX}'\n"
_NOW: Final = """
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
"""
_FENCED: Final = (
    _NAMES
    + f"""
if ARGV[1] ~= '' and redis.call('HGET', P .. 'leader', 'token') ~= ARGV[1] then
    return redis.error_reply('{LOST} another process serves batches')
end
"""
)
_FILES: Final = """
local function add_file(id, owner, bytes, expires_at, doc)
    redis.call('HSET', P .. 'file', id, doc)
    redis.call('ZREM', P .. 'loose', id)
    redis.call('ZADD', P .. 'files:' .. owner, redis.call('INCR', P .. 'seq'), id)
    redis.call('ZADD', P .. 'expiring', expires_at, id)
    redis.call('HINCRBY', P .. 'bytes', owner, bytes)
end
"""
_BATCHES: Final = """
local function ends(id, owner, input, created_at, doc)
    redis.call('ZREM', P .. 'unfinished', id)
    redis.call('SREM', P .. 'unfinished:' .. owner, id)
    redis.call('SREM', P .. 'reading:' .. input, id)
    redis.call('HSET', P .. 'batch', id, doc)
    redis.call('ZADD', P .. 'ended', created_at, id)
end
local function forget(id, owner)
    redis.call('ZREM', P .. 'ended', id)
    redis.call('ZREM', P .. 'batches:' .. owner, id)
    redis.call('HDEL', P .. 'batch', id)
end
"""

LEAD: Final = (
    _NAMES
    + _NOW
    + """
-- ARGV token, lease (ms)
local there = redis.call('HMGET', P .. 'leader', 'token', 'until')
local left = (tonumber(there[2] or '') or 0) - now
-- A lease that is longer than any is of another clock.
if there[1] and left > 0 and left <= tonumber(ARGV[2]) then return 0 end
redis.call('HDEL', P .. 'leader', 'until')
redis.call('HSET', P .. 'leader', 'token', ARGV[1], 'until', string.format('%.0f', now + ARGV[2]))
return 1
"""
)
"""1 if it is the caller's now."""

HOLD: Final = (
    _FENCED
    + _NOW
    + """
-- ARGV token, lease (ms)
redis.call('HDEL', P .. 'leader', 'until')
redis.call('HSET', P .. 'leader', 'until', string.format('%.0f', now + ARGV[2]))
return 1
"""
)
"""Renews the lease, also where it was over and no other process has taken it."""

RESIGN: Final = (
    _FENCED
    + """
-- ARGV token
return redis.call('DEL', P .. 'leader')
"""
)

EXPECT: Final = (
    _FENCED
    + """
-- ARGV token, name, seconds
redis.call('ZREM', P .. 'loose', ARGV[2])
return redis.call('ZADD', P .. 'loose', ARGV[3], ARGV[2])
"""
)

REMOVED: Final = (
    _FENCED
    + """
-- ARGV token, name
return redis.call('ZREM', P .. 'loose', ARGV[2])
"""
)

ADD_FILE: Final = (
    _FENCED
    + _FILES
    + """
-- ARGV token, id, owner, bytes, expires_at, file, most files, most bytes
local files = redis.call('ZCARD', P .. 'files:' .. ARGV[3])
local bytes = tonumber(redis.call('HGET', P .. 'bytes', ARGV[3]) or '0')
if files >= tonumber(ARGV[7]) or bytes + ARGV[4] > tonumber(ARGV[8]) then return 0 end
if not redis.call('ZSCORE', P .. 'loose', ARGV[2]) then return 0 end
add_file(ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6])
return 1
"""
)

REMOVE_FILE: Final = (
    _FENCED
    + """
-- ARGV token, id, owner, bytes
if redis.call('HDEL', P .. 'file', ARGV[2]) == 0 then return 0 end
redis.call('ZREM', P .. 'files:' .. ARGV[3], ARGV[2])
redis.call('ZREM', P .. 'expiring', ARGV[2])
if redis.call('HINCRBY', P .. 'bytes', ARGV[3], -ARGV[4]) <= 0 then
    redis.call('HDEL', P .. 'bytes', ARGV[3])
end
redis.call('ZADD', P .. 'loose', 0, ARGV[2])
return 1
"""
)

OUTDATED: Final = (
    _NAMES
    + """
-- ARGV seconds, limit
local found, at = {}, 0
repeat
    local ids = redis.call('ZRANGEBYSCORE', P .. 'expiring', '-inf', ARGV[1], 'LIMIT', at, 100)
    for _, id in ipairs(ids) do
        local file = redis.call('HGET', P .. 'file', id)
        if file and redis.call('EXISTS', P .. 'reading:' .. id) == 0 then
            found[#found + 1] = file
            if #found == tonumber(ARGV[2]) then return found end
        end
    end
    at = at + #ids
until #ids == 0
return found
"""
)

PAGE: Final = """
-- ARGV command, key, behind what, until what, most
return redis.call(ARGV[1], ARGV[2], ARGV[3], ARGV[4], 'WITHSCORES', 'LIMIT', 0, ARGV[5])
"""
"""Members and scores, as one list whatever the client's protocol."""

ADD_BATCH: Final = (
    _FENCED
    + _BATCHES
    + """
-- ARGV token, id, owner, input, batch, most that are not finished, most that have ended
local unfinished = redis.call('SCARD', P .. 'unfinished:' .. ARGV[3])
if unfinished >= tonumber(ARGV[6]) then return 0 end
local seq = redis.call('INCR', P .. 'seq')
redis.call('HSET', P .. 'batch', ARGV[2], ARGV[5])
redis.call('ZADD', P .. 'batches:' .. ARGV[3], seq, ARGV[2])
redis.call('ZADD', P .. 'unfinished', seq, ARGV[2])
redis.call('SADD', P .. 'unfinished:' .. ARGV[3], ARGV[2])
redis.call('SADD', P .. 'reading:' .. ARGV[4], ARGV[2])
local over = redis.call('ZCARD', P .. 'batches:' .. ARGV[3]) - unfinished - 1 - ARGV[7]
if over > 0 then
    for _, id in ipairs(redis.call('ZRANGE', P .. 'batches:' .. ARGV[3], 0, over + unfinished)) do
        if over > 0 and redis.call('SISMEMBER', P .. 'unfinished:' .. ARGV[3], id) == 0 then
            forget(id, ARGV[3])
            over = over - 1
        end
    end
end
return 1
"""
)

CHANGE: Final = (
    _FENCED
    + _BATCHES
    + """
-- ARGV token, id, what it was, what it becomes, 1 if it ends, owner, input, created_at
if redis.call('HGET', P .. 'batch', ARGV[2]) ~= ARGV[3] then return 0 end
redis.call('HDEL', P .. 'batch', ARGV[2])
if ARGV[5] == '1' then ends(ARGV[2], ARGV[6], ARGV[7], ARGV[8], ARGV[4])
else redis.call('HSET', P .. 'batch', ARGV[2], ARGV[4]) end
return 1
"""
)

ADD_RESULT: Final = (
    _FENCED
    + """
-- ARGV token, batch, number, row, ok or failed
if not redis.call('ZSCORE', P .. 'unfinished', ARGV[2]) then return 0 end
if redis.call('HSETNX', P .. 'rows:' .. ARGV[2], ARGV[3], ARGV[4]) == 0 then return 0 end
redis.call('ZADD', P .. ARGV[5] .. ':' .. ARGV[2], ARGV[3], ARGV[3])
return 1
"""
)

RESULTS: Final = (
    _NAMES
    + """
-- ARGV batch, ok or failed, the number behind which it begins, most bytes
local rows, found, size, after = P .. 'rows:' .. ARGV[1], {}, 0, ARGV[3]
repeat
    local numbers = redis.call(
        'ZRANGEBYSCORE', P .. ARGV[2] .. ':' .. ARGV[1], '(' .. after, '+inf', 'LIMIT', 0, 100
    )
    for _, number in ipairs(numbers) do
        size = size + redis.call('HSTRLEN', rows, number)
        if #found > 0 and size > tonumber(ARGV[4]) then return found end
        found[#found + 1] = number
        found[#found + 1] = redis.call('HGET', rows, number)
        after = number
    end
until #numbers == 0
return found
"""
)

FINISH: Final = (
    _FENCED
    + _FILES
    + _BATCHES
    + """
-- ARGV token, id, batch, owner, input, created_at, then of each file id, bytes, expires_at, file
if not redis.call('ZSCORE', P .. 'unfinished', ARGV[2]) then return 0 end
for at = 7, #ARGV, 4 do
    if not redis.call('ZSCORE', P .. 'loose', ARGV[at]) then return 0 end
end
for _, kind in ipairs({'rows:', 'ok:', 'failed:'}) do redis.call('UNLINK', P .. kind .. ARGV[2]) end
for at = 7, #ARGV, 4 do add_file(ARGV[at], ARGV[4], ARGV[at + 1], ARGV[at + 2], ARGV[at + 3]) end
ends(ARGV[2], ARGV[4], ARGV[5], ARGV[6], ARGV[3])
return 1
"""
)

FORGET: Final = (
    _FENCED
    + _BATCHES
    + """
-- ARGV token, then of each batch id, owner
for at = 2, #ARGV, 2 do
    if redis.call('ZSCORE', P .. 'ended', ARGV[at]) then forget(ARGV[at], ARGV[at + 1]) end
end
return 1
"""
)
