"""A claim: one proven connection to the decode engine, one JSON object a line.

Behind each object stand a space and the MAC of what comes before it (runtime/handshake.py), in hex.

    worker says     {"id": "9f3c/r1", "tries": 1, "host": "10.0.0.1", "port": 28000}
    decode answers  {"said": "yours"} | {"said": "taken"} | {"said": "gone"}
    after "yours"   {"said": "yours"}                           every now and then: still so
                    {"said": "over"}  | {"said": "again"}       when it is, and the end

    yours    it calls the prefill engine now; hold the item until the next word
    taken    another worker is at it, or was given it later: leave the item to the queue
    gone     it is not wanted any more: the item is done
    over     the pages are filled, or never will be: the item is done
    again    it failed here, and the decode engine has put it back for others

`host` and `port` are of the prefill engine's KV side.
"""

from enum import StrEnum
from typing import Annotated, Final, TypeVar

import msgspec

from pdgate.transfer.runtime.channel import Channel

PURPOSE: Final = "claim"
MAX_LINE_BYTES: Final = 4096


class ClaimWord(StrEnum):
    YOURS = "yours"
    TAKEN = "taken"
    GONE = "gone"
    OVER = "over"
    AGAIN = "again"


class Claim(msgspec.Struct, frozen=True):
    """
    Attributes:
        id: Of the item.
        tries: Which delivery of it this is.
    """

    id: str
    tries: int
    host: str
    port: Annotated[int, msgspec.Meta(ge=1, le=65535)]


class WorkerAnswer(msgspec.Struct, frozen=True):
    said: ClaimWord


Message = TypeVar("Message", Claim, WorkerAnswer)


class BadLine(Exception):
    """The peer said something else, or hung up."""


class Lines:
    """One end of the connection."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._sock = channel.sock
        self._read = b""

    def say(self, message: Claim | WorkerAnswer) -> None:
        """Raises OSError."""
        said = msgspec.json.encode(message)
        mac = self._channel.sealed(said)[len(said) :]
        self._sock.sendall(said + b" " + mac.hex().encode() + b"\n")

    def hear(self, kind: type[Message]) -> Message:
        """Raises BadLine, OSError; a TimeoutError loses nothing of what came before it."""
        while b"\n" not in self._read:
            piece = self._sock.recv(MAX_LINE_BYTES)
            if not piece:
                raise BadLine("the peer hung up")
            self._read += piece
            if len(self._read) > MAX_LINE_BYTES:
                raise BadLine("a line without end")
        line, _, self._read = self._read.partition(b"\n")
        said, _, mac = line.rpartition(b" ")
        try:
            self._channel.check(said, bytes.fromhex(mac.decode("ascii", "replace")))
            return msgspec.json.decode(said, type=kind)
        except (msgspec.DecodeError, ValueError) as error:
            raise BadLine(str(error)) from None
