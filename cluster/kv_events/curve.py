"""CURVE keys of ZeroMQ sockets for members of a fleet, made of the secret that it shares.

    publisher   a key pair for its life; says the public half with a proof that needs the secret
    listener    the key pair that the secret makes, so that a publisher knows who may listen

So neither end takes the other for a member that is none, and what passes is encrypted. When the
secret changes, only connections that are made from then on are concerned: the publisher's proof
and the listeners that it knows are made of the secrets that it has at that moment.

Source: RFC 26/CurveZMQ; RFC 2104 (HMAC).
"""

import hmac
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import zmq

FIELD: Final = "pdgate_curve"
"""What a publisher says of itself, beside where it listens."""
KEY_CHARACTERS: Final = 40
"""Of 32 bytes in Z85."""
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

    def of(self, socket: "zmq.Socket[Any]") -> None:
        """Before it connects."""
        socket.curve_serverkey = self.there
        socket.curve_publickey = self.ours.public
        socket.curve_secretkey = self.ours.private


class UnprovenPublisher(ValueError):
    """A publisher that proves no secret of ours, or one that we have no secret for."""


def publisher() -> CurvePair:
    # Configurations are read without ZeroMQ, which sockets alone need.
    import zmq

    return CurvePair(*zmq.curve_keypair())


def listener(secret: str) -> CurvePair:
    import zmq
    from zmq.utils import z85

    private = z85.encode(_made(secret, b"listener"))
    return CurvePair(zmq.curve_public(private), private)


def introduction(secret: str, public: bytes) -> dict[str, str]:
    """What a publisher says of itself: nothing that lets anybody listen."""
    return {"key": public.decode(), "proof": _proof(secret, public)}


def listening(said: Mapping[str, Any], secrets: Iterable[str]) -> Listening | None:
    """To a publisher that says this; None to one that encrypts nothing. Raises UnprovenPublisher."""
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


def _proof(secret: str, public: bytes) -> str:
    return _made(secret, b"publisher\0" + public).hex()


def _made(secret: str, what: bytes) -> bytes:
    return hmac.digest(secret.encode(), b"pdgate KV events " + what, "sha256")
