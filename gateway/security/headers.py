"""Header policy: which pass from clients to engines, and from engines to clients.

Both ways it is a list of what passes, and everything else stays behind. No setting can put on it
what frames a message or what the gateway itself says.
"""

import re
from dataclasses import dataclass
from typing import Literal

from pdgate.gateway.security.authenticator import KEY_HEADER
from pdgate.gateway.upstream.pool import FRAMING
from pdgate.gateway.upstream.settings import FORWARDED

Authorization = Literal["drop", "pass", "replace"]
"""What becomes of the client's: engines get none, the client's, or one of their own."""

AUTHORIZATION = b"authorization"
OURS = FRAMING | {
    AUTHORIZATION, b"expect", b"keep-alive", b"te", b"trailer", b"x-request-id",
    b"proxy-authenticate", b"proxy-authorization", b"set-cookie",
}  # fmt: skip
"""Hop by hop (RFC 9110, section 7.6.1), said by the gateway, or a matter of its own key."""

_is_name = re.compile(r"[!#$%&'*+.^_`|~0-9a-z-]+").fullmatch


@dataclass(frozen=True, slots=True)
class HeaderPolicy:
    """
    Attributes:
        to_engines: Names, in lower case, of the client's headers that engines get.
        to_clients: Names of the engine's headers that clients get, beside those of the body.
    """

    to_engines: frozenset[bytes] = FORWARDED
    to_clients: frozenset[bytes] = frozenset()


def policy(
    authorization: Authorization, more_to_engines: str, more_to_clients: str
) -> HeaderPolicy:
    """Raises ValueError; the texts are as `names` has them."""
    to_engines = FORWARDED | names(more_to_engines)
    if authorization != "pass":
        to_engines -= {AUTHORIZATION, KEY_HEADER}
    return HeaderPolicy(to_engines, names(more_to_clients))


def names(text: str) -> frozenset[bytes]:
    """Names of headers, between commas. Raises ValueError for one that must not pass."""
    found = set()
    for part in filter(None, (part.strip().lower() for part in text.split(","))):
        if not _is_name(part):
            raise ValueError(f"{part!r} is no name of a header")
        if part.encode() in OURS:
            raise ValueError(f"the header {part!r} is not for passing on")
        found.add(part.encode())
    return frozenset(found)


def authorization_of(
    asked: Authorization | None, *, has_keys: bool, has_own: bool
) -> Authorization:
    """What is asked for, else what leaks nothing.

    A key of the gateway's own is not for engines, which may be many and run by others.
    """
    if asked is not None:
        return asked
    if has_own:
        return "replace"
    return "drop" if has_keys else "pass"
