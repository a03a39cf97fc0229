"""Proofs of the fleet's secret at a Mooncake bootstrap server, in a header. Pure.

A proof of a worker is good for a minute, and as often as it is sent: who registers again says the
same. A proof of an answer is good for the question with its nonce.
"""

import hmac
import secrets
from typing import Final

from pdgate.transfer.runtime.fleet import NO_KEY, Keyring

FIELD: Final = "x-pdgate-kv"
GOOD_SECONDS: Final = 60.0
"""Clocks of a fleet may differ by so much."""
NONCE_BYTES: Final = 16


class BootstrapQuestion:
    """A question.

    Attributes:
        said: The header to send with it.
    """

    def __init__(self, keyring: Keyring) -> None:
        key_id, self._key = keyring.first()
        self._is_open = key_id == NO_KEY
        self._nonce = secrets.token_hex(NONCE_BYTES)
        self.said = f"{key_id.hex()}:{self._nonce}"

    def holds(self, proof: str, body: bytes) -> bool:
        """Whether the answer is of an engine with our secret, if we have one."""
        return self._is_open or _same(proof, _answer(self._key, self._nonce, body))


def of_answer(keyring: Keyring, said: str, body: bytes) -> str:
    """The header to send with an answer; empty for who does not ask for a proof, or has no secret
    of ours.
    """
    key_id, _, nonce = said.partition(":")
    key = _key(keyring, key_id)
    return _answer(key, nonce, body) if key else ""


def of_worker_holds(keyring: Keyring, said: str, body: bytes, now: float) -> bool:
    """Whether a registration is of an engine with our secret, if we have one."""
    if keyring.is_open:
        return True
    key_id, _, rest = said.partition(":")
    at, _, proof = rest.partition(":")
    key = _key(keyring, key_id)
    if not key or not at.isdecimal() or len(at) > 12 or abs(now - int(at)) > GOOD_SECONDS:
        return False
    return _same(proof, _worker(key, at, body))


def _key(keyring: Keyring, key_id: str) -> bytes | None:
    try:
        return keyring.find(bytes.fromhex(key_id))
    except ValueError:
        return None


def _answer(key: bytes, nonce: str, body: bytes) -> str:
    return hmac.digest(key, b"pdgate KV bootstrap " + nonce.encode() + b"\0" + body, "sha256").hex()


def _worker(key: bytes, at: str, body: bytes) -> str:
    return hmac.digest(key, b"pdgate KV worker " + at.encode() + b"\0" + body, "sha256").hex()


def _same(one: str, other: str) -> bool:
    return hmac.compare_digest(one.encode(), other.encode())
