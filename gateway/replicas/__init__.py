"""What the replicas of a gateway, on other hosts, know of each other's calls and prompts: leases and a stream in Redis.

entry.py      what one process tells, as bytes
load.py       our engines' accounts as an entry, and the others' entries in our accounts
board.py      where entries are: writes ours, gives back the others'
redis_board   the same in Redis, in one round trip
exchange.py   does that again and again, and says what it means when Redis is away
prompts.py    which prompts went where, as bytes
far_prompts   tells that to the others, and the prefix index what they tell
redis_stream  brings it to them
status.py     what operators see of it

Workers of one gateway share by memory (gateway/neighbours/). Each of them speaks to Redis for
itself, says which gateway it is of, and passes over what is of its own gateway: so every call
counts once, and no worker has to be the one that tells for all.
"""
