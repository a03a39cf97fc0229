"""Hosts and ports that may be dialled although they only stand in a store.

Write access there chooses what the gateway connects to, so nothing but a host and a
port gets through: no path, no query, no user name, no other scheme.
"""

import ipaddress
import re
from urllib.parse import urlsplit

HIGHEST_PORT = 65535
LONGEST_HOST = 253

_is_name = re.compile(
    r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?(\.[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)*", re.IGNORECASE
).fullmatch


def host(text: str) -> str:
    """An IP address or a DNS name, IPv6 without brackets. Raises ValueError."""
    bare = text[1:-1] if text.startswith("[") and text.endswith("]") else text
    if ":" in bare:
        # A zone ("%eth0") means something on one machine only.
        if "%" in bare:
            raise ValueError(f"{text!r} is not a host")
        return str(ipaddress.IPv6Address(bare))
    if len(bare) > LONGEST_HOST or bare != text or not _is_name(bare):
        raise ValueError(f"{text!r} is not a host")
    return bare.lower()


def port(text: str) -> int:
    """1 to 65535, in decimal digits. Raises ValueError."""
    # Not int() alone: it also reads "+80", " 80" and "8_0".
    if not (text.isascii() and text.isdecimal() and len(text) <= 5):
        raise ValueError(f"{text!r} is not a port")
    number = int(text)
    if not 0 < number <= HIGHEST_PORT:
        raise ValueError(f"{text!r} is not a port")
    return number


def joined(host: str, port: int) -> str:
    """host:port, an IPv6 host in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def host_and_port(text: str) -> str:
    """host:port in one spelling. Raises ValueError."""
    return joined(*split(text))


def split(text: str) -> tuple[str, int]:
    """Split host:port; the host without brackets. Raise ValueError."""
    before, colon, after = text.rpartition(":")
    # "::1:80" is an address in itself, and ambiguous as a pair.
    if not colon or (":" in before and not before.startswith("[")):
        raise ValueError(f"{text!r} is not an address like host:port")
    return host(before), port(after)


def endpoint(text: str) -> str:
    """http(s)://host:port and nothing else, not even a slash. Raises ValueError."""
    parts = urlsplit(text)
    if "@" in parts.netloc:
        # Not what stands there: it may be a password.
        raise ValueError("a URL with a user name in it is not accepted: that goes into a file")
    if parts.scheme not in ("http", "https") or text != f"{parts.scheme}://{parts.netloc}":
        raise ValueError(f"{text!r} is not a URL like http://host:port")
    return f"{parts.scheme}://{host_and_port(parts.netloc)}"


def endpoints(text: str) -> tuple[str, ...]:
    """Several, between commas; a slash at the end is forgiven. Raises ValueError."""
    return tuple(endpoint(part.strip().removesuffix("/")) for part in text.split(","))
