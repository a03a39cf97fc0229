"""The contract of the library that moves an external-mover backend's bytes.

A library knows addresses and other processes; regions, epochs, bounds, deadlines and
counts are ours (backend.py). Addresses are absolute, lengths are bytes.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pdgate.transfer.base import Op, TransferError
from pdgate.transfer.memory import HOST


class Piece(NamedTuple):
    """`length` bytes at the address `local` of ours and `remote` of the peer's."""

    local: int
    remote: int
    length: int


@dataclass(frozen=True, slots=True)
class Move:
    """
    Attributes:
        card: The peer's, see `Library.card`.
        notice: What `Library.landed` of the peer is asked for; None if it will not be.
        stranded: The peer does not answer any more, or we are closing: a library that
            can break off does so.
        ours, theirs: Where the memory of both sides is: "host", "cuda:0".
    """

    op: Op
    card: bytes
    pieces: Sequence[Piece]
    notice: bytes | None
    stranded: Callable[[], bool]
    ours: str = HOST
    theirs: str = HOST


class Library(ABC):
    """Every method may be called from any thread."""

    @abstractmethod
    def card(self) -> bytes:
        """How peers reach us now. It may change with what is registered."""

    @abstractmethod
    def register(self, address: int, length: int) -> None:
        """Raises TransferError."""

    def register_on(self, place: str, address: int, length: int) -> None:
        """Memory of a device, "cuda:0". Raises TransferError if it cannot move that."""
        raise TransferError(f"{type(self).__name__} does not move memory of {place}")

    @abstractmethod
    def unregister(self, address: int, length: int) -> None:
        """No bytes move there any more. Raises TransferError."""

    @abstractmethod
    def move(self, move: Move) -> None:
        """Blocks until no byte of it moves any more. Raises TransferError if not all did."""

    @abstractmethod
    def landed(self, notice: bytes) -> bool:
        """The write that carried this notice is complete in our memory; it may wait a moment."""

    def left(self, card: bytes) -> None:
        """The peer with this card has ended, as it seems, and no move to it is under way: what is kept of it may go."""
        return

    @abstractmethod
    def close(self) -> None:
        """Nothing is under way and nothing is registered any more."""


def missing(transfer: str, what: str, cure: str) -> LookupError:
    """The one line for a package or a shared library that is not there."""
    return LookupError(f"transfer backend {transfer} needs {what}: {cure}")
