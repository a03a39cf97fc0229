"""Networks that may reach a port which is open to other hosts."""

from collections.abc import Sequence
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network


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
