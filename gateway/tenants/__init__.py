"""Tenants: how many tokens each API key and each tenant of a token may take, and has taken.

account       the numbers of one tenant, and whether a call fits beneath its limits; pure
local         accounts in this process, or in memory that the workers of a gateway share
saved         what survives a restart without Redis: a file in the state folder
in_redis      accounts that replicas share; redis_script is account.py in Lua
headroom      what is left, as headers and sentences
meter         the answer of a call that is counted
tenants       a call's reservation, from its beginning to its end
shares        shares of a model's calls for other models
"""
