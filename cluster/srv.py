"""Hosts and ports of a service, as its SRV records name them; needs dnspython (extra `dns`).

Records are asked of the servers that resolv.conf names, as the system's own resolver does not
give them; the addresses of a host are still that resolver's to find.

Those of the best priority are all engines: the others are for when none of these can be reached,
which is for the gateway's health checks to find and not for a resolver. Weights are not used, as
policies go by load.
"""

from collections.abc import Sequence
from typing import Final

from dns.asyncresolver import Resolver
from dns.exception import DNSException
from dns.rdtypes.IN.SRV import SRV
from dns.resolver import NXDOMAIN, NoAnswer

from pdgate.cluster.polled import Unseen

ANSWER_SECONDS: Final = 5.0

NOT_HERE: Final = "."
"""Target of a record that says that there is no such service."""


async def servers(name: str, resolver: Resolver | None = None) -> Sequence[tuple[str, int]]:
    """Host names and ports as they are said, in an order that stays. Raises Unseen."""
    try:
        answer = await (resolver or Resolver()).resolve(name, "SRV", lifetime=ANSWER_SECONDS)
    except (NXDOMAIN, NoAnswer):
        return []
    except (DNSException, OSError) as error:
        raise Unseen(f"{name}: {error}") from None
    found = [record for record in answer if isinstance(record, SRV)]
    best = min((record.priority for record in found), default=0)
    named = {
        (record.target.to_text(), record.port) for record in found if record.priority == best
    } - {(NOT_HERE, 0)}
    return sorted((host.removesuffix(".").lower(), port) for host, port in named)
