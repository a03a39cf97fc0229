"""A library for external-mover backends that moves bytes within this process, as a test tells it to."""

import ctypes
import threading
from typing import ClassVar

from pdgate.transfer.base import Op, TransferError
from pdgate.transfer.external_mover.backend import Visiting
from pdgate.transfer.external_mover.library import Library, Move
from pdgate.transfer.memory import CUDA, HOST
from tests.support import waiting

SECONDS = waiting.PATIENCE_SECONDS


class InProcess(Library):
    """Obeys the contract; `go_on` holds its moves back while it is cleared.

    Attributes:
        entered: A move has begun.
        fails: The next moves move nothing.
        silent: Its notices do not arrive.
        places: That memory was said to be in: as it was registered, and of both sides of moves.
    """

    def __init__(self) -> None:
        self.entered, self.go_on = threading.Event(), threading.Event()
        self.go_on.set()
        self.fails = self.silent = self.closed = False
        self.registered: dict[int, int] = {}
        self.places: list[tuple[str, ...]] = []

    def card(self) -> bytes:
        return b"here"

    def register(self, address: int, length: int) -> None:
        self.registered[address] = length

    def register_on(self, place: str, address: int, length: int) -> None:
        self.places.append((place,))
        self.register(address, length)

    def unregister(self, address: int, length: int) -> None:
        assert self.registered.pop(address) == length

    def move(self, move: Move) -> None:
        assert move.card == b"here"
        self.entered.set()
        self.places.append((move.ours, move.theirs))
        assert self.go_on.wait(SECONDS)
        if self.fails:
            raise TransferError("it failed")
        for local, remote, length in move.pieces:
            to, source = (local, remote) if move.op is Op.READ else (remote, local)
            ctypes.memmove(to, source, length)

    def landed(self, notice: bytes) -> bool:
        return not self.silent

    def close(self) -> None:
        self.closed = True


class InProcessBackend(Visiting):
    name: ClassVar = "in-process"
    moves: ClassVar = frozenset({HOST, CUDA})
    library: InProcess

    def open_library(self, host: str, advertise: str) -> Library:
        self.library = InProcess()
        return self.library
