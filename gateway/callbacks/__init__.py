"""Callbacks: what engines say to the gateway in the middle of a call, on ports that are open for that alone.

    words.py         a mailbox: what attempts wait for, by keys that only their engines know
    metaserver.py    HTTP: decode says where its blocks are, before prefill is asked (ascend-layerwise)
    notifications.py ZeroMQ: prefill says that KV has been pushed, before decode is asked (lmcache)
    upstream.py      legs that wait for a word, around the upstream that sends them
    part.py          all of it, as settings ask for it

Any host may reach such a port: addresses are allowed by network, messages are short, connections few,
and a word counts only for a key that an attempt waits for; the rest is refused and counted by its reason.
"""
