"""What the replicas of a gateway, on other hosts, know of each other's calls and prompts: leases and a stream in Redis.

entry.py      what one process tells, as bytes
load.py       our engines' accounts as an entry, and the others' entries in our accounts
base.py       contracts: entries, which takes ours and gives back the others'; and a stream
in_redis.py   both in Redis, in one round trip each
exchange.py   does that again and again, and says what it means when Redis is away; what
              operators see of it
prompts.py    which prompts went where, as bytes
far_prompts   ours for the others, by the stream, and theirs for the prefix index

Workers of one gateway share by memory (gateway/sync/workers/). Each of them speaks to Redis for
itself, says which gateway it is of, and passes over what is of its own gateway: so every call
counts once, and no worker has to be the one that tells for all.
"""
