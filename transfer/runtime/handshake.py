"""Proof of both ends of a connection that they know the fleet's secret. Pure: bytes in, bytes out.

    dialler                                         listener
      | HELLO   version, key id, name, nonce, purpose --> |
      | <-- ANSWER   version, verdict, name, nonce, proof |   HMAC over both messages
      | PROOF   ----------------------------------------> |   HMAC over both messages
      |        frames from here on have a MAC each        |   of keys made for this connection

Both nonces are in both proofs, so nothing recorded can be used again; the two proofs begin with
different words, so none can be sent back; the purpose and both names are in them, so that a
connection cannot be passed on to a port of another kind or in the name of another.

Magic, version and verdict stand at the same place in all versions, so that a peer of another
version is refused with both numbers.

Source of the shape: RFC 5802 (SCRAM: nonces and proofs of both sides) RFC 2104 (HMAC), and
RFC 7693 (keyed BLAKE2b, the MAC of frames).
"""

import hashlib
import hmac
import secrets
import struct
from collections.abc import Collection
from enum import IntEnum
from typing import Final

from pdgate.transfer.runtime.fleet import KEY_ID_BYTES, NO_KEY, Identity
from pdgate.transfer.runtime.refusals import Reason

MAGIC: Final = b"PDHS"
VERSION: Final = 1
NONCE_BYTES: Final = 32
PROOF_BYTES: Final = 32
MAC_BYTES: Final = 16
PURPOSE_BYTES: Final = 16

_HELLO = struct.Struct(f">4sB3x{KEY_ID_BYTES}s16s{NONCE_BYTES}s{PURPOSE_BYTES}s")
_ANSWER = struct.Struct(f">4sBB2x16s{NONCE_BYTES}s")
_COUNT = struct.Struct(">Q")
HEAD_BYTES: Final = 5
"""Magic and version, of a HELLO of any version."""
HELLO_BYTES: Final = _HELLO.size
VERDICT_BYTES: Final = 6
"""Magic, version and verdict, of an ANSWER of any version."""
ANSWER_BYTES: Final = _ANSWER.size + PROOF_BYTES


class HandshakeVerdict(IntEnum):
    WELCOME = 0
    OTHER_VERSION = 1
    OTHER_SECRET = 2
    OTHER_PURPOSE = 3


class Unproven(ConnectionError):
    """A peer that did not prove who it is, or that we could not prove ourselves to."""

    def __init__(self, message: str, why: Reason = Reason.PROOF) -> None:
        super().__init__(message)
        self.why = why


class Seal:
    """Signs, or checks, the frames of one direction in their order."""

    def __init__(self, key: bytes) -> None:
        # A page of 4 KiB takes four of them: 2 us each, where HMAC-SHA256 of OpenSSL takes 8 to 17.
        self._keyed = hashlib.blake2b(key=key, digest_size=MAC_BYTES)
        self._count = 0

    def mac(self, data: bytes) -> bytes:
        """Of the next frame."""
        made = self._keyed.copy()
        made.update(_COUNT.pack(self._count))
        made.update(data)
        self._count += 1
        return made.digest()

    def check(self, data: bytes, mac: bytes) -> None:
        """Raises Unproven."""
        if not hmac.compare_digest(self.mac(data), mac):
            raise Unproven("a frame was not made by the peer, or not as it came")


class Session:
    """What a handshake has settled.

    Attributes:
        peer: Name of the other end's process, in hex.
    """

    def __init__(self, peer: bytes, purpose: str, outgoing: Seal, incoming: Seal) -> None:
        self.peer = peer.hex()
        self.purpose = purpose
        self.outgoing = outgoing
        self.incoming = incoming


class Dialling:
    """The dialler's end.

    Attributes:
        hello: The first message.
    """

    def __init__(self, identity: Identity, purpose: str) -> None:
        key_id, self._key = identity.keyring.first()
        self._is_open = key_id == NO_KEY
        self._purpose = purpose
        nonce = secrets.token_bytes(NONCE_BYTES)
        name = purpose.encode()
        self.hello = _HELLO.pack(MAGIC, VERSION, key_id, identity.name, nonce, name)

    def judge(self, head: bytes) -> None:
        """The beginning of an ANSWER: raises Unproven unless all of it is to come."""
        if head[:4] != MAGIC:
            raise Unproven(
                f"the peer knows no KV handshake, we speak version {VERSION}", Reason.VERSION
            )
        version, verdict = head[4], head[5]
        if version != VERSION:
            raise Unproven(
                f"the peer speaks version {version} of the KV handshake, we speak version "
                f"{VERSION}",
                Reason.VERSION,
            )
        if verdict == HandshakeVerdict.OTHER_SECRET:
            ours = "we have none" if self._is_open else "it does not know ours"
            raise Unproven(f"the peer has another KV secret, or none: {ours}", Reason.SECRET)
        if verdict == HandshakeVerdict.OTHER_PURPOSE:
            raise Unproven(f"the peer's port is not for {self._purpose}")
        if verdict != HandshakeVerdict.WELCOME:
            raise Unproven(f"the peer refuses us ({verdict})")

    def answered(self, answer: bytes) -> tuple[bytes, Session]:
        """The proof to send, and what holds from now on. Raises Unproven."""
        self.judge(answer)
        said, proof = answer[: _ANSWER.size], answer[_ANSWER.size :]
        _, _, _, name, _ = _ANSWER.unpack(said)
        transcript = self.hello + said
        if not hmac.compare_digest(proof, _derived(self._key, b"listener", transcript)):
            raise Unproven("the peer does not know the KV secret", Reason.PROOF)
        return _derived(self._key, b"dialler", transcript), Session(
            name,
            self._purpose,
            Seal(_derived(self._key, b"from dialler", transcript)),
            Seal(_derived(self._key, b"from listener", transcript)),
        )


class Answering:
    """The listener's end.

    Attributes:
        answer: What to say to the HELLO, also where it is refused.
        refusal: Why it is; empty if the dialler's proof is to come.
        why: The same, for counters.
    """

    def __init__(self, identity: Identity, purposes: Collection[str], hello: bytes) -> None:
        self.refusal = ""
        self.why = Reason.PROOF
        verdict, key, purpose = HandshakeVerdict.WELCOME, b"", ""
        self._name = b""
        if hello[4] != VERSION:
            verdict = HandshakeVerdict.OTHER_VERSION
            self.why = Reason.VERSION
            self.refusal = (
                f"it speaks version {hello[4]} of the KV handshake, we speak version {VERSION}"
            )
        else:
            _, _, key_id, self._name, _, said = _HELLO.unpack(hello)
            purpose = said.rstrip(b"\0").decode("ascii", "replace")
            found = identity.keyring.find(key_id)
            if found is None:
                verdict = HandshakeVerdict.OTHER_SECRET
                self.why = Reason.SECRET
                self.refusal = (
                    "it has another KV secret" if key_id != NO_KEY else "it has no KV secret"
                )
            elif purpose not in purposes:
                verdict = HandshakeVerdict.OTHER_PURPOSE
                self.refusal = f"it wants {purpose!r}"
            else:
                key = found
        nonce = secrets.token_bytes(NONCE_BYTES)
        answer = _ANSWER.pack(MAGIC, VERSION, verdict, identity.name, nonce)
        self._purpose = purpose
        self._key = key
        self._transcript = hello + answer
        proof = bytes(PROOF_BYTES)
        if not self.refusal:
            proof = _derived(key, b"listener", self._transcript)
        self.answer = answer + proof

    def proven(self, proof: bytes) -> Session:
        """Raises Unproven."""
        wanted = _derived(self._key, b"dialler", self._transcript)
        if self.refusal or not hmac.compare_digest(proof, wanted):
            raise Unproven(self.refusal or "it does not know the KV secret", self.why)
        return Session(
            self._name,
            self._purpose,
            Seal(_derived(self._key, b"from listener", self._transcript)),
            Seal(_derived(self._key, b"from dialler", self._transcript)),
        )


def _derived(key: bytes, what: bytes, transcript: bytes) -> bytes:
    return hmac.digest(key, b"pdgate KV " + what + b"\0" + transcript, "sha256")
