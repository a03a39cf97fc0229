"""CURVE, the client's side: whom we dial has the key that we were told of, and learns ours; all that follows is encrypted.

    we     HELLO, INITIATE, MESSAGE, ...      they   WELCOME, READY, MESSAGE, ...

Keys of this connection alone (here `brief`) make what passes secret also from who learns the lasting ones later.

Source: RFC 26 (CurveZMQ: commands, nonces, boxes); RFC 25 (ZMTP-CURVE); libzmq 4.3.5, src/curve_mechanism_base.cpp (encode, decode).
"""

import secrets
from typing import Final

from nacl.bindings import (
    crypto_box_afternm,
    crypto_box_beforenm,
    crypto_box_keypair,
    crypto_box_open_afternm,
)
from nacl.exceptions import CryptoError

from pdgate.cluster.kv_events.curve import Listening, decoded
from pdgate.cluster.zmtp.wire import EndedConnection, RefusalReason, Wire, prop

MECHANISM: Final = b"CURVE"

_MESSAGE: Final = b"\7MESSAGE"
_KEY_BYTES: Final = 32
_LONG_NONCE_BYTES: Final = 16
_NONCE_BYTES: Final = 8
_BOX_BYTES: Final = 16
_MORE, _COMMAND = 1, 2


class CurveSession:
    """Frames of a connection that both sides have proven themselves on."""

    overhead_bytes: Final = len(_MESSAGE) + _NONCE_BYTES + _BOX_BYTES + 1

    def __init__(self, key: bytes, sent: int, heard: int) -> None:
        """`sent`, `heard`: the last nonce of either side."""
        self._key = key
        self._sent = sent
        self._heard = heard

    def seal(self, *, more: bool, command: bool, body: bytes) -> bytes:
        self._sent += 1
        number = self._sent.to_bytes(_NONCE_BYTES)
        flags = bytes([(_MORE if more else 0) | (_COMMAND if command else 0)])
        return (
            _MESSAGE
            + number
            + crypto_box_afternm(flags + body, b"CurveZMQMESSAGEC" + number, self._key)
        )

    def opened(self, body: bytes) -> tuple[bool, bool, bytes]:
        number = body[len(_MESSAGE) :][:_NONCE_BYTES]
        if not body.startswith(_MESSAGE) or int.from_bytes(number) <= self._heard:
            raise ValueError("not a message, or one that was heard before")
        self._heard = int.from_bytes(number)
        plain = _opened(
            body[len(_MESSAGE) + _NONCE_BYTES :], b"CurveZMQMESSAGES" + number, self._key
        )
        if not plain:
            raise ValueError("a message without flags")
        return bool(plain[0] & _MORE), bool(plain[0] & _COMMAND), plain[1:]


async def let_in(wire: Wire, kind: str, proven: Listening) -> None:
    """Let a peer in, after the greeting. Raise EndedConnection where it has another key or does not know ours, OSError, EOFError."""
    there, ours, our_secret = (
        decoded(key) for key in (proven.there, proven.ours.public, proven.ours.private)
    )
    brief, brief_secret = crypto_box_keypair()
    first = crypto_box_beforenm(there, brief_secret)
    number = (1).to_bytes(_NONCE_BYTES)
    box = crypto_box_afternm(bytes(64), b"CurveZMQHELLO---" + number, first)
    wire.command(b"\5HELLO\1\0" + bytes(72) + brief + number + box)
    try:
        said = await wire.commanded(b"\7WELCOME")
        welcome = _opened(said[_LONG_NONCE_BYTES:], b"WELCOME-" + said[:_LONG_NONCE_BYTES], first)
        their_brief, cookie = welcome[:_KEY_BYTES], welcome[_KEY_BYTES:]
        key = crypto_box_beforenm(their_brief, brief_secret)
        nonce = secrets.token_bytes(_LONG_NONCE_BYTES)
        vouch = crypto_box_afternm(
            brief + there, b"VOUCH---" + nonce, crypto_box_beforenm(their_brief, our_secret)
        )
        number = (2).to_bytes(_NONCE_BYTES)
        us = ours + nonce + vouch + prop(b"Socket-Type", kind.encode())
        box = crypto_box_afternm(us, b"CurveZMQINITIATE" + number, key)
        wire.command(b"\x08INITIATE" + cookie + number + box)
        said = await wire.commanded(b"\5READY")
        number = said[:_NONCE_BYTES]
        _opened(said[_NONCE_BYTES:], b"CurveZMQREADY---" + number, key)
    except ValueError:
        raise EndedConnection(RefusalReason.MALFORMED) from None
    wire.seal = CurveSession(key, 2, int.from_bytes(number))


def _opened(box: bytes, nonce: bytes, key: bytes) -> bytes:
    """Raises ValueError."""
    try:
        return crypto_box_open_afternm(box, nonce, key)
    except (CryptoError, ValueError, TypeError) as error:
        raise ValueError(f"a box that is not for us: {error}") from None
