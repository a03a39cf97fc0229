"""Signing keys of an identity provider: its JWKS, a URL or a file, looked at again and again.

    every REFRESH_SECONDS       and when a token names a key that is not known, at most once in AGAIN_SECONDS
    it does not answer          the keys of the last look are good for KEPT_SECONDS, and then none is

Keys for signatures are taken that are RSA of 2048 bits and more (RS256), EC P-256 (ES256) or Ed25519 (EdDSA); what is
symmetric, for encryption, or anything else opens nothing.

Source: RFC 7517, 7518, 8037; PyJWT 2.10, jwt.PyJWK.
"""

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from ipaddress import ip_address
from time import monotonic
from typing import Any, Final
from urllib.parse import urlsplit

from pdgate.cluster import regular
from pdgate.cluster.complaint import Complaint
from pdgate.gateway.tenants.tokens import SigningKeysUnknown

log = logging.getLogger(__name__)

REFRESH_SECONDS: Final = 300.0
AGAIN_SECONDS: Final = 10.0
FAILED_SECONDS: Final = 5.0
KEPT_SECONDS: Final = 24 * 3600.0
ANSWER_SECONDS: Final = 5.0
MOST_BYTES: Final = 256 << 10
MOST_KEYS: Final = 64
LEAST_RSA_BITS: Final = 2048
_ALGORITHMS: Final = {("RSA", None): "RS256", ("EC", "P-256"): "ES256", ("OKP", "Ed25519"): "EdDSA"}

Read = Callable[[], Awaitable[bytes]]
"""What the provider says. Raises OSError, ValueError."""


class Jwks:
    """
    Attributes:
        edition: Counts changes of the keys.
        looks: How often the provider was asked.
    """

    def __init__(self, read: Read, clock: Callable[[], float] = monotonic) -> None:
        self.edition = 0
        self.looks = 0
        self._read = read
        self._clock = clock
        self._keys: dict[str | None, tuple[Any, str]] = {}
        self._said = b""
        self._good_until = -1.0
        self._next = 0.0
        self._wanted = asyncio.Event()
        self._complaint = Complaint(
            log,
            "the keys of tokens (jwt.jwks) cannot be read",
            "the keys of tokens can be read again",
        )

    def find(self, kid: str | None) -> tuple[Any, str] | None:
        """Raise SigningKeysUnknown. A token without `kid` may be of a provider that has one key."""
        if self._clock() > self._good_until:
            self._wanted.set()
            raise SigningKeysUnknown(
                "who calls cannot be checked now, as the keys of tokens are not known",
                retry_after_seconds=int(AGAIN_SECONDS),
            )
        if kid is None and len(self._keys) == 1:
            return next(iter(self._keys.values()))
        found = self._keys.get(kid)
        if found is None:
            self._wanted.set()
        return found

    async def run(self) -> None:
        """Run until cancelled."""
        while True:
            good = await self.look()
            self._wanted.clear()
            await asyncio.sleep(AGAIN_SECONDS if good else FAILED_SECONDS)
            if good:
                try:
                    async with asyncio.timeout(REFRESH_SECONDS - AGAIN_SECONDS):
                        await self._wanted.wait()
                except TimeoutError:
                    continue

    async def look(self) -> bool:
        """Whether the provider said its keys."""
        self.looks += 1
        try:
            said = await self._read()
            if said != self._said or not self._keys:
                self._keys, self._said = signing_keys(said), said
                self.edition += 1
        except (OSError, ValueError, TimeoutError) as error:
            self._complaint.about(str(error) or type(error).__name__)
            return False
        self._good_until = self._clock() + KEPT_SECONDS
        self._complaint.over()
        return True


def signing_keys(said: bytes) -> dict[str | None, tuple[Any, str]]:
    """`kid` -> key and its algorithm, of those that are taken. Raise ValueError."""
    import jwt

    try:
        found = json.loads(said)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    said_keys = found.get("keys") if isinstance(found, dict) else None
    listed = said_keys if isinstance(said_keys, list) else []
    keys: dict[str | None, tuple[Any, str]] = {}
    for one in listed[:MOST_KEYS]:
        if not isinstance(one, dict) or one.get("use", "sig") != "sig":
            continue
        kind, curve, kid = one.get("kty"), one.get("crv"), one.get("kid")
        if not isinstance(kind, str) or not isinstance(kid, str | None):
            continue
        algorithm = _ALGORITHMS.get((kind, curve if isinstance(curve, str) else None))
        if algorithm is None or one.get("alg", algorithm) != algorithm or "d" in one:
            continue
        try:
            key = jwt.PyJWK(one, algorithm=algorithm).key
        except (jwt.PyJWTError, ValueError, TypeError):
            continue
        if algorithm == "RS256" and key.key_size < LEAST_RSA_BITS:
            log.warning("a key of tokens has %d bits, which is too few", key.key_size)
            continue
        keys[kid] = key, algorithm
    if not keys:
        raise ValueError("there is no key in it for RS256, ES256 or EdDSA")
    return keys


def check_source(where: str) -> None:
    """Check a source that a configuration names. Raise ValueError."""
    if "://" not in where:
        try:
            signing_keys(regular.read(where, MOST_BYTES))
        except OSError as error:
            raise ValueError(f"cannot read {where}: {error.strerror}") from None
        return
    parts = urlsplit(where)
    if parts.scheme == "https" and parts.hostname:
        return
    if parts.scheme == "http" and _is_loopback(parts.hostname):
        return
    raise ValueError("it is a file, or a URL of https (or of http at this host's loopback)")


def _is_loopback(host: str | None) -> bool:
    if host == "localhost":
        return True
    try:
        return ip_address(host or "").is_loopback
    except ValueError:
        return False


def reader_of(where: str) -> Read:
    return (lambda: _fetched(where)) if "://" in where else (lambda: _of_file(where))


async def _of_file(path: str) -> bytes:
    return await asyncio.to_thread(regular.read, path, MOST_BYTES)


async def _fetched(url: str) -> bytes:
    """Raise OSError, ValueError."""
    # Only a gateway that asks a provider needs it here.
    import httpx2

    said = b""
    try:
        async with (
            asyncio.timeout(2 * ANSWER_SECONDS),
            httpx2.AsyncClient(timeout=ANSWER_SECONDS) as client,
            client.stream("GET", url, headers={"accept": "application/json"}) as answer,
        ):
            if answer.status_code != 200:
                raise ValueError(f"the answer is {answer.status_code}")
            async for piece in answer.aiter_bytes():
                said += piece
                if len(said) > MOST_BYTES:
                    raise ValueError(f"it has more than {MOST_BYTES} bytes")
    except httpx2.HTTPError as error:
        raise OSError(f"{type(error).__name__} {error}".strip()) from None
    return said
