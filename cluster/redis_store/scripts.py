"""The steps on Redis that must be one: each is a Lua script, which Redis runs alone.

    pdgate:{members}:values    hash: key -> value, as in every other store
    pdgate:{members}:leases    sorted set: key, by the end of its lease (ms since 1970)
    pdgate:{members}:written   sorted set: key, by the revision in which it was written
    pdgate:{members}:state     hash: "id" of this life of the store, "revision" of its contents
    pdgate:{members}:changes   channel: the revision, whenever there is a new one

Times are those of Redis' own clock, so those of engines and gateways need not agree. Each
reader sweeps out what has ended: keyspace notifications, which are off by default, are not
needed. The braces keep all keys on one node of a cluster.

Source: Redis 7.0, commands HSET, ZADD, ZRANGE, PUBLISH, TIME (in scripts: effects replication).
"""

from typing import Final

VALUES: Final = "pdgate:{members}:values"
LEASES: Final = "pdgate:{members}:leases"
WRITTEN: Final = "pdgate:{members}:written"
STATE: Final = "pdgate:{members}:state"
KEYS: Final = (VALUES, LEASES, WRITTEN, STATE)
CHANGES: Final = "pdgate:{members}:changes"

_NOW: Final = """
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
"""
_CHANGED: Final = """
local function changed()
    local revision = redis.call('HINCRBY', KEYS[4], 'revision', 1)
    redis.call('PUBLISH', 'pdgate:{members}:changes', revision)
    return revision
end
local function forget(key)
    redis.call('HDEL', KEYS[1], key)
    redis.call('ZREM', KEYS[2], key)
    redis.call('ZREM', KEYS[3], key)
end
"""

PUT: Final = (
    _NOW
    + _CHANGED
    + """
-- ARGV lease (ms), key, value, the value that must be there or "", an id for a store that has
-- none, then keys and values to go
if ARGV[4] ~= '' and redis.call('HGET', KEYS[1], ARGV[2]) ~= ARGV[4] then return false end
redis.call('HSETNX', KEYS[4], 'id', ARGV[5])
redis.call('HSET', KEYS[1], ARGV[2], ARGV[3])
redis.call('ZADD', KEYS[2], now + ARGV[1], ARGV[2])
for at = 6, #ARGV, 2 do
    if redis.call('HGET', KEYS[1], ARGV[at]) == ARGV[at + 1] then forget(ARGV[at]) end
end
local revision = changed()
redis.call('ZADD', KEYS[3], revision, ARGV[2])
return {'held', redis.call('HGET', KEYS[4], 'id'), revision, now}
"""
)
"""As of RENEW; or nothing, if something else is there than there must be."""

RENEW: Final = (
    _NOW
    + """
-- ARGV lease (ms), key, value
local there = redis.call('HGET', KEYS[1], ARGV[2])
local word = 'held'
if not there then word = 'missing'
elseif there ~= ARGV[3] then word = 'another'
else redis.call('ZADD', KEYS[2], now + ARGV[1], ARGV[2]) end
local revision = tonumber(redis.call('HGET', KEYS[4], 'revision') or '0')
return {word, redis.call('HGET', KEYS[4], 'id') or '', revision, now}
"""
)
"""What was found, the store's id and revision, and its time (ms since 1970)."""

DROP: Final = (
    _CHANGED
    + """
-- ARGV keys and values: each goes if it has that value still
local gone = 0
for at = 1, #ARGV, 2 do
    if redis.call('HGET', KEYS[1], ARGV[at]) == ARGV[at + 1] then
        forget(ARGV[at])
        gone = gone + 1
    end
end
if gone > 0 then changed() end
return gone
"""
)

LOOK: Final = (
    _NOW
    + _CHANGED
    + """
-- ARGV an id for a store that has none, the id and the revision that are known, how many entries
-- are read, how many bytes of their values, and of one key or value
local most, room, longest = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
local ended = redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', now)
for _, key in ipairs(ended) do forget(key) end
if #ended > 0 then changed() end
redis.call('HSETNX', KEYS[4], 'id', ARGV[1])
local id = string.sub(redis.call('HGET', KEYS[4], 'id'), 1, 64)
local revision = string.sub(redis.call('HGET', KEYS[4], 'revision') or '0', 1, 64)
if id == ARGV[2] and revision == ARGV[3] then return {id, revision} end
local left, values, packed = {}, {}, {}
local leases = redis.call('ZRANGE', KEYS[2], 0, -1, 'WITHSCORES')
for at = 1, #leases, 2 do left[leases[at]] = tonumber(leases[at + 1]) - now end
local keys = redis.call('ZRANGE', KEYS[3], 0, -1)
local there = redis.call('HGETALL', KEYS[1])
for at = 1, #there, 2 do
    values[there[at]] = there[at + 1]
    if not redis.call('ZSCORE', KEYS[3], there[at]) then keys[#keys + 1] = there[at] end
end
for _, key in ipairs(keys) do
    local value = values[key]
    if #packed > most or room < 0 then break end
    if value and #key <= longest then
        value = string.sub(value, 1, longest)
        room = room - #value
        packed[#packed + 1] = struct.pack('>I4I4d', #key, #value, left[key] or -1) .. key .. value
    end
end
return {id, revision, table.concat(packed)}
"""
)
"""Id and revision; if they are not those that are known, also all entries, as they were written:
lengths of key and value (4 bytes each, big endian), what is left of the lease (ms, a double; -1 for
none), key, value. What goes beyond what is read is left out, but for the first. As one text, because a client takes 20 times as long for as many texts."""
