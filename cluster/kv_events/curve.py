"""CURVE keys of ZeroMQ sockets for members of a fleet, made of the secret that it shares.

    publisher   a key pair for its life; says the public half with a proof that needs the secret
    listener    the key pair that the secret makes, so that a publisher knows who may listen

So neither end takes the other for a member that is none, and what passes is encrypted. When the
secret changes, only connections that are made from then on are concerned: the publisher's proof
and the listeners that it knows are made of the secrets that it has at that moment.

Keys are said in Z85, as ZeroMQ takes them.

Source: RFC 26/CurveZMQ; RFC 32/Z85; RFC 2104 (HMAC).
"""

import hmac
import secrets as random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

FIELD: Final = "pdgate_curve"
"""What a publisher says of itself, beside where it listens."""
KEY_BYTES: Final = 32
KEY_CHARACTERS: Final = 40
"""Of as many bytes in Z85."""
_Z85: Final = (
    b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
)
DOMAIN: Final = b"pdgate"
"""Of ZAP. While it is named, libzmq lets no peer in unless it was asked."""


@dataclass(frozen=True, slots=True)
class CurvePair:
    """Z85."""

    public: bytes
    private: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Listening:
    """What it takes to listen to one publisher.

    Attributes:
        there: Its public key.
        ours: Of the secret that it proved.
    """

    there: bytes
    ours: CurvePair


class UnprovenPublisher(ValueError):
    """A publisher that proves no secret of ours, or one that we have no secret for."""


def publisher() -> CurvePair:
    return _pair(random.token_bytes(KEY_BYTES))


def listener(secret: str) -> CurvePair:
    return _pair(_made(secret, b"listener"))


def introduction(secret: str, public: bytes) -> dict[str, str]:
    """What a publisher says of itself: nothing that lets anybody listen."""
    return {"key": public.decode(), "proof": _proof(secret, public)}


def listening(said: Mapping[str, Any], secrets: Iterable[str]) -> Listening | None:
    """Listening to a publisher that says this; None to one that encrypts nothing. Raise UnprovenPublisher."""
    introduced = said.get(FIELD)
    if introduced is None:
        return None
    match introduced:
        case {"key": str(key), "proof": str(proof)} if key.isascii() and proof.isascii():
            public = key.encode()
        case _:
            raise UnprovenPublisher(f"its {FIELD} is no key with a proof")
    if len(public) != KEY_CHARACTERS:
        raise UnprovenPublisher(f"its {FIELD} is no key with a proof")
    known = list(secrets)
    for secret in known:
        if hmac.compare_digest(_proof(secret, public), proof):
            return Listening(public, listener(secret))
    ours = "it proves none of ours" if known else "we have none"
    raise UnprovenPublisher(f"its KV events are for who has the fleet's KV secret, and {ours}")


def encoded(key: bytes) -> bytes:
    words = (int.from_bytes(key[at : at + 4]) for at in range(0, len(key), 4))
    return bytes(_Z85[word // 85**power % 85] for word in words for power in range(4, -1, -1))


def decoded(key: bytes) -> bytes:
    """Raises ValueError."""
    words = (key[at : at + 5] for at in range(0, len(key), 5))
    values = (sum(_Z85.index(each) * 85 ** (4 - at) for at, each in enumerate(w)) for w in words)
    try:
        return b"".join(value.to_bytes(4) for value in values)
    except OverflowError:
        raise ValueError("not Z85") from None


def _pair(private: bytes) -> CurvePair:
    # Configurations are read without it.
    from nacl.bindings import crypto_scalarmult_base

    return CurvePair(encoded(crypto_scalarmult_base(private)), encoded(private))


def _proof(secret: str, public: bytes) -> str:
    return _made(secret, b"publisher\0" + public).hex()


def _made(secret: str, what: bytes) -> bytes:
    return hmac.digest(secret.encode(), b"pdgate KV events " + what, "sha256")
