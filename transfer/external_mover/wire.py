"""Messages to the owner of a region around the bytes that a library moves.

    peer                                        owner
      | ENTER, epoch [16] --------------------> |  epoch known, region open?
      | <-- status, ticket, base, length, card  |
      |     ... the library moves the bytes ... |  the region cannot go meanwhile
      | LEAVE, counted?, immediate -----------> |  is it still open? count
      |   or FAIL                               |
      | <-- status                              |

On a proven connection, with a MAC behind each message (runtime/handshake.py): what it takes to reach
the memory is sent to peers with the fleet's secret only. A peer that hangs up has left, and counts
nothing. A connection carries one visit after the other. Integers are little-endian; `base` is an
address in the owner's memory, the card is what the library needs to find the owner, the ticket is
new for each visit.
"""

import secrets
import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from pdgate.transfer.runtime.channel import Channel
from pdgate.transfer.runtime.handshake import MAC_BYTES
from pdgate.transfer.runtime.sockets import receive, receive_views

MAGIC: Final = b"PDVT"
TICKET_BYTES: Final = 16
MAX_CARD_BYTES: Final = 16 << 20

_REQUEST = struct.Struct("<4sBBxx16sI")
_ANSWER = struct.Struct("<4sBxxx16sQQI")


class BadMoverRequest(Exception):
    """The bytes are not ours."""


class MoverWord(IntEnum):
    ENTER = 1
    LEAVE = 2
    FAIL = 3
    """Leaves as well; not all bytes have moved."""


class MoverStatus(IntEnum):
    OK = 0
    STALE = 1
    MISSING = 2
    """The write's data were announced as moved, but have not shown up at the owner."""


@dataclass(frozen=True, slots=True)
class MoverRequest:
    word: MoverWord
    epoch: bytes = bytes(16)
    immediate: int | None = None


@dataclass(frozen=True, slots=True)
class MoverAnswer:
    status: MoverStatus
    ticket: bytes = bytes(TICKET_BYTES)
    base: int = 0
    length: int = 0
    card: bytes = b""


def new_ticket() -> bytes:
    return secrets.token_bytes(TICKET_BYTES)


def send_request(channel: Channel, request: MoverRequest) -> None:
    counted = request.immediate is not None
    said = _REQUEST.pack(MAGIC, request.word, counted, request.epoch, request.immediate or 0)
    channel.sock.sendall(channel.sealed(said))


def receive_request(channel: Channel, stall_seconds: float) -> MoverRequest | None:
    """None when the peer hung up between requests. Raises BadMoverRequest, OSError.

    For the first byte it waits for ever, for the others `stall_seconds`.
    """
    sock = channel.sock
    sock.settimeout(None)
    head = bytearray(_REQUEST.size)
    first = sock.recv_into(head)
    if first == 0:
        return None
    sock.settimeout(stall_seconds)
    mac = bytearray(MAC_BYTES)
    receive_views(sock, [memoryview(head)[first:], memoryview(mac)])
    channel.check(bytes(head), bytes(mac))
    magic, word, counted, epoch, immediate = _REQUEST.unpack(head)
    if magic != MAGIC or word not in tuple(MoverWord) or counted > 1:
        raise BadMoverRequest
    return MoverRequest(MoverWord(word), epoch, immediate if counted else None)


def send_answer(channel: Channel, answer: MoverAnswer) -> None:
    head = _ANSWER.pack(
        MAGIC, answer.status, answer.ticket, answer.base, answer.length, len(answer.card)
    )
    channel.sock.sendall(channel.sealed(head + answer.card))


def receive_answer(channel: Channel) -> MoverAnswer:
    """Raises BadMoverRequest, OSError."""
    sock = channel.sock
    head = receive(sock, _ANSWER.size)
    magic, status, ticket, base, length, card_bytes = _ANSWER.unpack(head)
    if magic != MAGIC or status not in tuple(MoverStatus) or card_bytes > MAX_CARD_BYTES:
        raise BadMoverRequest
    card = receive(sock, card_bytes)
    channel.check(head + card, receive(sock, MAC_BYTES))
    return MoverAnswer(MoverStatus(status), ticket, base, length, card)
