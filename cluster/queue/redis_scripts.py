"""The steps on Redis that must be one: each is a Lua script, which Redis runs alone.

    {pdgate:prefill:MODEL}:items    stream: item (JSON), tries (of earlier deliveries)
    {...}:ids                       hash: item id -> entry in the stream, until it is done
    {...}:dead                      stream: item, tries; the last `DEAD_KEPT` that were given up
    {...}:dead:ID                   exists for a while after the item was given up
    {...}:seen                      Redis's time, in seconds, when a worker took or held last

The braces keep all keys on one node of a cluster. The group's list of pending entries says
who has taken what, since when, and how often it was delivered.

Source: Redis 7.0, commands XADD, XPENDING, XCLAIM (JUSTID counts no delivery), XACK, XDEL.
"""

from typing import Final

GROUP: Final = "workers"
DEAD_KEPT: Final = 1000
DEAD_SECONDS: Final = 3600

# KEYS items, ids, dead:ID   ARGV group, id, item, capacity
PUT: Final = """
if redis.call('EXISTS', KEYS[3]) == 1 then return 'buried' end
if redis.call('HEXISTS', KEYS[2], ARGV[2]) == 1 then return 'there' end
if redis.call('HLEN', KEYS[2]) >= tonumber(ARGV[4]) then return 'full' end
if redis.call('EXISTS', KEYS[1]) == 0 then
    redis.call('XGROUP', 'CREATE', KEYS[1], ARGV[1], '0', 'MKSTREAM')
end
local entry = redis.call('XADD', KEYS[1], '*', 'item', ARGV[3], 'tries', '0')
redis.call('HSET', KEYS[2], ARGV[2], entry)
return 'put'
"""

# A worker that waits shows itself in no group: Redis 7.0 notes it with the first item only.
# KEYS seen
SEEN: Final = """
redis.call('SET', KEYS[1], redis.call('TIME')[1])
"""

# KEYS items, seen   ARGV group, entry, worker
HOLD: Final = """
redis.call('SET', KEYS[2], redis.call('TIME')[1])
if redis.call('EXISTS', KEYS[1]) == 0 then return 0 end
local found = redis.call('XPENDING', KEYS[1], ARGV[1], ARGV[2], ARGV[2], 1)
if #found == 0 or found[1][2] ~= ARGV[3] then return 0 end
redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[3], 0, ARGV[2], 'JUSTID')
return 1
"""

# A new entry, so that a worker that waits for one gets it. KEYS items, ids   ARGV group, id
FREE: Final = """
local entry = redis.call('HGET', KEYS[2], ARGV[2])
if not entry then return 0 end
local found = redis.call('XPENDING', KEYS[1], ARGV[1], entry, entry, 1)
local old = redis.call('XRANGE', KEYS[1], entry, entry)
if #found == 0 or #old == 0 then return 0 end
local fields = old[1][2]
local tries = tonumber(fields[4]) + found[1][4]
redis.call('XACK', KEYS[1], ARGV[1], entry)
redis.call('XDEL', KEYS[1], entry)
local new = redis.call('XADD', KEYS[1], '*', 'item', fields[2], 'tries', tries)
redis.call('HSET', KEYS[2], ARGV[2], new)
return 1
"""

# KEYS items, ids   ARGV group, id
DONE: Final = """
local entry = redis.call('HGET', KEYS[2], ARGV[2])
if not entry then return 0 end
redis.call('XACK', KEYS[1], ARGV[1], entry)
redis.call('XDEL', KEYS[1], entry)
redis.call('HDEL', KEYS[2], ARGV[2])
return 1
"""

# Only what was taken can be given up. KEYS items, ids, dead, dead:ID
# ARGV group, entry, id, item, tries, kept, seconds
BURY: Final = """
redis.call('XACK', KEYS[1], ARGV[1], ARGV[2])
redis.call('XDEL', KEYS[1], ARGV[2])
redis.call('XADD', KEYS[3], 'MAXLEN', '~', ARGV[6], '*', 'item', ARGV[4], 'tries', ARGV[5])
if ARGV[3] ~= '' then
    if redis.call('HGET', KEYS[2], ARGV[3]) == ARGV[2] then
        redis.call('HDEL', KEYS[2], ARGV[3])
    end
    redis.call('SET', KEYS[4], '1', 'EX', ARGV[7])
end
return 1
"""

# KEYS items, ids, dead, seen   ARGV group
DEPTH: Final = """
local now = redis.call('TIME')
local length = redis.call('XLEN', KEYS[1])
local taken = 0
if length > 0 then
    local groups = redis.call('XINFO', 'GROUPS', KEYS[1])
    for _, group in ipairs(groups) do
        for at = 1, #group, 2 do
            if group[at] == 'pending' then taken = taken + group[at + 1] end
        end
    end
end
local first = redis.call('XRANGE', KEYS[1], '-', '+', 'COUNT', 1)
local oldest = '0'
if #first > 0 then
    local since = tonumber(string.match(first[1][1], '^(%d+)'))
    oldest = tostring(now[1] + now[2] / 1e6 - since / 1e3)
end
local seen = tonumber(redis.call('GET', KEYS[4]) or '')
local idle = seen and tostring(now[1] - seen) or ''
return {length - taken, taken, redis.call('XLEN', KEYS[3]), oldest, idle}
"""
