"""Engine addresses, kept out of what clients read.

The gateway's own errors name roles. What is left are the words of an engine that refused a call,
which may name itself or a peer (vLLM: "could not connect to 10.0.0.2:5600"); they are the
client's, but for the addresses. Answers that are not errors carry none, but for Neuron's ids,
which its forwarder rewrites.

An error may be a megabyte, and repeats what its client wrote. So the expressions are linear (no
run of letters is begun twice), and a body is read in pieces with turns of the event loop between.
"""

import asyncio
import ipaddress
import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import pairwise

from pdgate.protocols.errors import EngineRejected
from pdgate.protocols.instance import Instance

IN_PLACE = b"[engine]"

PIECE_BYTES = 16 << 10
"""Of short IPv6 addresses and nothing else, 18 ms."""

# Possessive, and behind whatever is no part of a name: otherwise each letter of a long word is tried as
# the first of a name that has no port.
_HOST_AND_PORT = re.compile(
    rb"(?:(?<![A-Za-z0-9.-])https?://)?"
    rb"(\[[0-9A-Fa-f:.]++\]|(?<![A-Za-z0-9.-])[A-Za-z0-9.-]++):\d{1,5}(?!\.?\w)"
)
_IP = re.compile(
    rb"(?<![A-Za-z0-9.:])(?:\d{1,3}(?:\.\d{1,3}){3}|[0-9A-Fa-f]*+(?::[0-9A-Fa-f]*+){2,7})"
    rb"(?![A-Za-z0-9:]|\.\d)"
)
_ENDS = (b" ", b'"', b",")
"""Where a body may be cut: none of them is in an address."""


async def without_addresses(error: EngineRejected, fleet: Iterable[Instance]) -> EngineRejected:
    """The same error, its body without the addresses of the fleet.

    An engine's host goes with any port, and without one if it is an IP address: a name may be
    a word of the prompt.
    """
    hosts = {host for instance in fleet for host in _hosts(instance)}
    left: list[bytes] = []
    for piece in _pieces(error.body):
        if left:
            await asyncio.sleep(0)
        left.append(_cleaned(piece, hosts))
    return EngineRejected(error.answer_status, error.headers, b"".join(left), at=error.at)


def _pieces(body: bytes) -> Iterator[bytes]:
    cuts = [0]
    while len(body) - cuts[-1] > PIECE_BYTES:
        begin, end = cuts[-1], cuts[-1] + PIECE_BYTES
        cut = max(body.rfind(byte, begin, end) for byte in _ENDS)
        # Words of this length are no address.
        cuts.append(cut + 1 if cut >= begin else end)
    yield from (body[begin:end] for begin, end in pairwise((*cuts, len(body))))


def _cleaned(piece: bytes, hosts: set[bytes]) -> bytes:
    def instead(found: re.Match[bytes]) -> bytes:
        host = found[found.lastindex or 0].strip(b"[].-").lower()
        return IN_PLACE if host in hosts else found[0]

    piece = _HOST_AND_PORT.sub(instead, piece)
    return _IP.sub(lambda found: instead(found) if _is_ip(found[0]) else found[0], piece)


@lru_cache(maxsize=4096)
def _hosts(instance: Instance) -> frozenset[bytes]:
    return frozenset(host.encode() for host in (instance.host, instance.kv_address(0)[0]))


def _is_ip(host: bytes) -> bool:
    try:
        ipaddress.ip_address(host.decode())
    except ValueError:
        return False
    return True
