"""Access to Kubernetes' API: its address, our token, and the certificates that it may show.

In a pod all of it is there: the address in the environment, the rest in a folder.

    KUBERNETES_SERVICE_HOST, _PORT
    /var/run/secrets/kubernetes.io/serviceaccount/token       written anew every hour or so
                                                  ca.crt
                                                  namespace

Source: "Accessing the Kubernetes API from a Pod" in Kubernetes' documentation.
"""

import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from pdgate.cluster import address, secret
from pdgate.cluster.kubernetes.slices import ROLE
from pdgate.cluster.trust import check_ca, trusted

SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
LOOPBACK: Final = ("127.0.0.1", "::1", "localhost")


@dataclass(frozen=True, slots=True)
class KubernetesAccess:
    """
    Attributes:
        url: http(s)://host:port.
        namespace: Whose EndpointSlices are read.
        selector: Which of them, by their labels, as Kubernetes writes it.
        token_file: Read at each request, as it is replaced before what it says expires.
        ca_file: Certificates of who may vouch for the server, as PEM; empty for the usual ones.
    """

    url: str
    namespace: str
    selector: str = ROLE
    token_file: str = ""
    ca_file: str = ""

    def headers(self) -> dict[str, str]:
        """Raises ValueError."""
        if not self.token_file:
            return {}
        return {"authorization": f"Bearer {secret.token(self.token_file)}"}

    def trust(self) -> ssl.SSLContext | bool:
        """Raises OSError."""
        if self.url.startswith("http:"):
            # No certificate is needed there; loading the usual authorities takes 35 ms.
            return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        if not self.ca_file:
            return True
        context = trusted(self.ca_file)
        # Python 3.13 asks for extensions that the authorities of some clusters lack (EKS: no key
        # identifiers). Chain, dates and names are checked all the same.
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        return context


def in_pod(
    environ: Mapping[str, str],
    selector: str = ROLE,
    namespace: str = "",
    folder: Path = SERVICE_ACCOUNT,
) -> KubernetesAccess:
    """Access as Kubernetes gives it to a pod; the pod's own namespace by default. Raises ValueError."""
    host, port = environ.get("KUBERNETES_SERVICE_HOST"), environ.get("KUBERNETES_SERVICE_PORT")
    if not host or not port:
        raise ValueError(
            "this is no pod (KUBERNETES_SERVICE_HOST is not set): say where Kubernetes' API is"
        )
    url = f"https://{address.joined(address.host(host), address.port(port))}"
    namespace = namespace or secret.read(str(folder / "namespace"))
    token_file, ca_file = str(folder / "token"), str(folder / "ca.crt")
    return checked(KubernetesAccess(url, namespace, selector, token_file, ca_file))


def checked(access: KubernetesAccess) -> KubernetesAccess:
    """Raises ValueError."""
    parts = urlsplit(address.endpoint(access.url))
    if access.token_file and parts.scheme == "http" and parts.hostname not in LOOPBACK:
        raise ValueError(f"{access.url}: a token is sent by https only")
    if not access.namespace:
        raise ValueError("of which namespace is not said")
    access.headers()
    check_ca(access.ca_file)
    return access
