"""Who may call, and what passes between clients and engines.

keys      what an API key is, and how one is made
limits    a token bucket
door      asks callers for their keys and holds them to their limits
books     counts by key
"""
