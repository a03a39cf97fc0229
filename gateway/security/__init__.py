"""Security: which clients may call, what passes between them and engines, how both are spoken to.

keys              what an API key is
authenticator     asks callers for their keys, holds them to their limits, counts by key
headers, cors     which headers pass either way; which web pages may call
addresses         keeps those of engines out of what clients read
tls               contexts for both sides
engine_access     how the gateway shows itself to engines, for calls and all else
cli               `pdgate key`
"""
