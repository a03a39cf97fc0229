"""Identity of an engine among its fleet: a name of its process, and the secrets that all share.

    file or environment      PDGATE_KV_SECRET_FILE, PDGATE_KV_SECRET; several secrets, one a line
    the first secret         what we prove ourselves with
    all of them              what peers may prove themselves with, so that a fleet can change over

Without a secret nothing can be proven, so KV is for loopback alone: listeners bind nothing else,
and nothing else is dialled.
"""

import hmac
import ipaddress
import logging
import os
import secrets
import socket
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from pdgate.cluster import secret
from pdgate.transfer.runtime.refusals import Refusals
from pdgate.transfer.runtime.tls import Tls

FILE_VARIABLE: Final = "PDGATE_KV_SECRET_FILE"
SECRET_VARIABLE: Final = "PDGATE_KV_SECRET"
TLS_VARIABLES: Final = (
    "PDGATE_KV_TLS_CERT_FILE",
    "PDGATE_KV_TLS_KEY_FILE",
    "PDGATE_KV_TLS_CA_FILE",
)
NAME_BYTES: Final = 16
KEY_ID_BYTES: Final = 8
NO_KEY: Final = bytes(KEY_ID_BYTES)

CURE: Final = (
    "name a file with the fleet's secret (--kv-secret-file, PDGATE_KV_SECRET_FILE; in vLLM "
    "kv_connector_extra_config.kv_secret_file), or listen on 127.0.0.1"
)

log = logging.getLogger(__name__)


class Keyring:
    """Secrets of the fleet; a file is read again when it has changed. Never shown by `repr`."""

    def __init__(self, secrets: Sequence[str] = (), path: str = "") -> None:
        """`path` goes before `secrets`. Raises ValueError."""
        self.path = path
        self._keys = [one.encode() for one in secrets]
        self._stamp: tuple[int, int, int] | None = None
        if path:
            self._stamp = _stamp(path)
            self._keys = [one.encode() for one in secret.several(path)]

    @property
    def is_open(self) -> bool:
        """Whether there is no secret at all."""
        return not self._keys

    def first(self) -> tuple[bytes, bytes]:
        """The id and the secret that we prove ourselves with."""
        self._look_again()
        if not self._keys:
            return NO_KEY, b""
        return key_id(self._keys[0]), self._keys[0]

    def find(self, wanted: bytes) -> bytes | None:
        """The secret with this id. None if it is not ours, or is none and we have one."""
        self._look_again()
        if not self._keys:
            return b"" if wanted == NO_KEY else None
        return next((key for key in self._keys if key_id(key) == wanted), None)

    def texts(self) -> list[str]:
        """The secrets themselves, as they are now."""
        self._look_again()
        return [key.decode() for key in self._keys]

    def _look_again(self) -> None:
        if not self.path:
            return
        try:
            stamp = _stamp(self.path)
            if stamp == self._stamp:
                return
            self._keys = [one.encode() for one in secret.several(self.path)]
            self._stamp = stamp
        except ValueError as error:
            # Half written, or being replaced: what was good before stays good.
            log.warning("the KV secrets stay as they were: %s", error)


@dataclass(frozen=True, slots=True)
class Identity:
    """
    Attributes:
        name: Random, of a process and those that move its pages. No secret.
        tls: What encrypts connections, beside the secret; None for nothing.
        refusals: Peers that did not prove themselves, at all ports of the process.
    """

    keyring: Keyring = field(default_factory=Keyring, repr=False)
    name: bytes = field(default_factory=lambda: process_name())
    tls: Tls | None = None
    refusals: Refusals = field(default_factory=Refusals, repr=False, compare=False)

    @property
    def is_open(self) -> bool:
        return self.keyring.is_open


_named: tuple[int, bytes] = (0, b"")


def process_name() -> bytes:
    """One for each process, also where they were forked."""
    global _named
    if _named[0] != os.getpid():
        _named = os.getpid(), secrets.token_bytes(NAME_BYTES)
    return _named[1]


def configured(path: str = "", tls: Tls | None = None) -> Identity:
    """By files that were named, or by the environment. Raises ValueError."""
    path = path or os.environ.get(FILE_VARIABLE, "")
    said = "" if path else os.environ.get(SECRET_VARIABLE, "")
    keyring = Keyring(secret.checked(said.split(), SECRET_VARIABLE) if said else (), path)
    if tls is None or not tls.named:
        tls = Tls(*(os.environ.get(name, "") for name in TLS_VARIABLES))
    if not tls.named:
        return Identity(keyring)
    tls.check()
    if keyring.is_open:
        raise ValueError("TLS between engines comes beside a KV secret, and there is none")
    return Identity(keyring, tls=tls)


def key_id(key: bytes) -> bytes:
    """What says which secret is meant, and no more of it than one hash does."""
    return hmac.digest(key, b"pdgate KV key id", "sha256")[:KEY_ID_BYTES]


def listening(
    what: str, host: str, port: int, identity: Identity, backlog: int = 128
) -> socket.socket:
    """A port of ours. Raises ValueError where it takes a secret, OSError."""
    check_place(what, host, identity)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=backlog)


def check_place(what: str, host: str, identity: Identity) -> None:
    """Raises ValueError if listening there takes a secret."""
    if not identity.is_open:
        log.info("%s listens on %s for peers with the KV secret", what, host or "all addresses")
    elif loopback(host):
        log.info("%s listens on %s, loopback only: there is no KV secret", what, host)
    else:
        raise ValueError(
            f"{what} would listen on {host or 'all addresses'} without a KV secret, where whoever "
            f"reaches it could read and overwrite KV: {CURE}"
        )


def loopback(host: str) -> bool:
    """Whether all that it names is this machine's loopback."""
    try:
        return _is_loopback(host)
    except ValueError:
        pass
    if not host:
        return False
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    # UnicodeError: a host name that IDNA cannot encode.
    except (OSError, UnicodeError):
        return False
    return all(_is_loopback(str(one[4][0])) for one in found)


def _is_loopback(literal: str) -> bool:
    """Raises ValueError."""
    found = ipaddress.ip_address(literal.partition("%")[0])
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return (mapped or found).is_loopback


def _stamp(path: str) -> tuple[int, int, int]:
    """Raises ValueError."""
    try:
        found = os.stat(path)
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}") from None
    return found.st_mtime_ns, found.st_ino, found.st_size
