"""Doorkeeper of ZeroMQ sockets: lets connections in by the networks that they come from (ZAP, RFC 27).

ZeroMQ asks it over a socket of its own before a message of a new connection is read. A socket that has a ZAP_DOMAIN is not
reached before the doorkeeper has answered.
"""

from collections.abc import Sequence
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from typing import Final

AT: Final = "inproc://zeromq.zap.01"
DOMAIN: Final = b"pdgate"


class Allowed:
    """Networks that connections may come from; this machine's own addresses alone without any."""

    def __init__(self, networks: Sequence[str] = ()) -> None:
        """Raises ValueError."""
        self._networks: list[IPv4Network | IPv6Network] = [ip_network(each) for each in networks]

    @classmethod
    def of(cls, text: str) -> "Allowed":
        """Networks between commas. Raises ValueError."""
        return cls([each.strip() for each in text.split(",") if each.strip()])

    def __contains__(self, host: str) -> bool:
        try:
            address = ip_address(host.partition("%")[0])
        except ValueError:
            return False
        address = getattr(address, "ipv4_mapped", None) or address
        if not self._networks:
            return address.is_loopback
        return any(address in network for network in self._networks)


def answer(asked: Sequence[bytes], allowed: Allowed) -> tuple[bool, list[bytes]]:
    """Whether a connection is let in, and what to say to that question of ZeroMQ's."""
    version, request, _, address = asked[:4]
    welcome = address.decode("ascii", "replace") in allowed
    return welcome, [version, request, b"200" if welcome else b"400", b"", b"", b""]
