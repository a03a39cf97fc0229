"""Keeps the addresses of engines out of what clients read.

The gateway's own errors name roles. What is left are the words of an engine that refused a call,
which may name itself or a peer (vLLM: "could not connect to 10.0.0.2:5600"); they are the
client's, but for the addresses. Answers that are not errors carry none, but for Neuron's ids,
which its forwarder rewrites.
"""

import ipaddress
import re
from collections.abc import Iterable
from functools import lru_cache

from pdgate.protocols.errors import EngineRejected
from pdgate.protocols.instance import Instance

IN_PLACE = b"[engine]"

_HOST_AND_PORT = re.compile(rb"(?:https?://)?(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9.-]+):\d{1,5}\b")
_IP = re.compile(
    rb"(?<![A-Za-z0-9.:])(?:\d{1,3}(?:\.\d{1,3}){3}|[0-9A-Fa-f]*(?::[0-9A-Fa-f]*){2,7})"
    rb"(?![A-Za-z0-9:]|\.\d)"
)


def without_addresses(error: EngineRejected, fleet: Iterable[Instance]) -> EngineRejected:
    """The same error, its body without the addresses of the fleet.

    An engine's host goes with any port, and without one if it is an IP address: a name may be
    a word of the prompt.
    """
    hosts = {host for instance in fleet for host in _hosts(instance)}

    def instead(found: re.Match[bytes]) -> bytes:
        host = found[found.lastindex or 0].strip(b"[]").lower()
        return IN_PLACE if host in hosts else found[0]

    body = _HOST_AND_PORT.sub(instead, error.body)
    body = _IP.sub(lambda found: instead(found) if _is_ip(found[0]) else found[0], body)
    return EngineRejected(error.answer_status, error.headers, body, at=error.at)


@lru_cache(maxsize=4096)
def _hosts(instance: Instance) -> frozenset[bytes]:
    return frozenset(host.encode() for host in (instance.host, instance.kv_address(0)[0]))


def _is_ip(host: bytes) -> bool:
    try:
        ipaddress.ip_address(host.decode())
    except ValueError:
        return False
    return True
