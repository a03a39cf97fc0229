"""Access to an etcd: its address, our name and password, and the certificates that it may show."""

import ssl
from collections.abc import Sequence
from dataclasses import dataclass

from pdgate.cluster.etcd.login import Login
from pdgate.cluster.trust import trusted


@dataclass(frozen=True, slots=True)
class EtcdAccess:
    """
    Attributes:
        endpoints: URLs of its members.
        login: For an etcd that asks for one.
        ca_file: Certificates of who may vouch for its members, as PEM; empty for the usual ones.
    """

    endpoints: Sequence[str]
    login: Login | None = None
    ca_file: str = ""

    def trust(self) -> ssl.SSLContext | bool:
        """Raises OSError."""
        return trusted(self.ca_file) if self.ca_file else True
