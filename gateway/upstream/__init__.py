"""HTTP/1.1 client of the gateway towards engines: pooled, on asyncio Protocols.

    client.py      HttpUpstream: sends legs, gives answers (the Upstream contract)
    pool.py        the connections to one URL, and the heads of what is sent on them
    connection.py  one connection: bytes in, head, body pieces and end out
    contracts.py   what each of these needs of the next
    exchange.py    one leg on its way and its answer (the Answer contract), with its deadlines
    one_shot.py    small questions off the path of calls, as of probes, on a connection of their own
    failures.py    what an answer other than 2xx means

A piece of a body goes from `data_received` to the sink in one chain of calls: no task,
future or timer is made for it.
"""

from pdgate.gateway.upstream.client import HttpUpstream
from pdgate.gateway.upstream.settings import UpstreamSettings

__all__ = ["HttpUpstream", "UpstreamSettings"]
