"""Types of single values, with the checks that a JSON schema cannot say.

What takes longer to import is imported when there is a value, so that help, which has none, is quick.
"""

from typing import Annotated

from pydantic import AfterValidator, Field

from pdgate.gateway.tracing.collector import check_endpoint, check_headers_file

Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
SecondsOrZero = Annotated[float, Field(ge=0, allow_inf_nan=False)]
"""0 has a meaning of its own."""
Count = Annotated[int, Field(ge=1)]


def _etcd(text: str) -> str:
    """Raises ValueError."""
    from pdgate.cluster import address

    return ",".join(address.endpoints(text)) if text else text


def _etcd_user(path: str) -> str:
    """Raises ValueError."""
    from pdgate.cluster.etcd import login

    login.read(path)
    return path


def _etcd_ca(path: str) -> str:
    """Raises ValueError."""
    from pdgate.cluster import trust

    trust.check_ca(path)
    return path


def _redis(text: str) -> str:
    """Raises ValueError, without the secrets that a URL may hold."""
    from urllib.parse import urlsplit

    if text and (urlsplit(text).scheme not in ("redis", "rediss") or not urlsplit(text).netloc):
        raise ValueError("it is not a URL like redis://host:port/number")
    return text


def _header_names(text: str) -> str:
    """Raises ValueError."""
    from pdgate.gateway.security.headers import names

    names(text)
    return text


def _origins(text: str) -> str:
    """Raises ValueError."""
    from pdgate.gateway.security.cors import origins_of

    origins_of(text)
    return text


def _listener(text: str) -> str:
    """Raises ValueError."""
    from pdgate.gateway.config.instances import host_and_port

    if text:
        host_and_port(text)
    return text


def _networks(text: str) -> str:
    """Raises ValueError."""
    from ipaddress import ip_network

    for each in text.split(","):
        if each.strip():
            ip_network(each.strip())
    return text


def _kv_endpoint(text: str) -> str:
    """Raises ValueError."""
    from pdgate.gateway.kv_events.sources import check_template

    return check_template(text)


EtcdUrls = Annotated[str, AfterValidator(_etcd)]
EtcdUserFile = Annotated[str, AfterValidator(_etcd_user)]
EtcdCaFile = Annotated[str, AfterValidator(_etcd_ca)]
RedisUrl = Annotated[str, AfterValidator(_redis)]
HeaderNames = Annotated[str, AfterValidator(_header_names)]
Origins = Annotated[str, AfterValidator(_origins)]
Networks = Annotated[str, AfterValidator(_networks)]
Listener = Annotated[str, AfterValidator(_listener)]
KvEndpoint = Annotated[str, AfterValidator(_kv_endpoint)]
OtlpEndpoint = Annotated[str, AfterValidator(check_endpoint)]
OtlpHeadersFile = Annotated[str, AfterValidator(check_headers_file)]
