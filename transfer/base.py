"""The contract of a KV transfer backend, which moves ranges of bytes between registered memory.

    owner                                   peer
      | region = backend.register(memory)     |
      | region.descriptor  ---- any way ----> |
      |                                       | transfer = backend.read(descriptor, ranges)
      |                                       | await transfer.wait(timeout_seconds)

A descriptor is plain data (it travels as JSON or msgpack) and carries an epoch: the
random id of the registration. A peer that restarted, or a region that was closed, has
another epoch, so a stale descriptor is refused and never reads foreign memory.

Completion of writes can be counted: a write may carry a u32 immediate, and `expect`
ends when that many writes with this immediate have arrived, in any order.

What is wrong from the start (a range outside our own memory, a closed backend) raises at
once; all that a peer or the network can do ends the transfer instead.

Thread safety: every method may be called from any thread; transfers end on a thread of
the backend's.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, ClassVar

from pdgate.transfer import memory as memories
from pdgate.transfer.memory import Memory
from pdgate.transfer.parts import Part


class Op(StrEnum):
    READ = "read"
    WRITE = "write"


class TransferError(Exception):
    """A transfer that did not end well; `state` says how."""


class StaleDescriptor(TransferError):
    """The region behind the descriptor is gone or belongs to another life of the peer."""


class OutOfBounds(TransferError):
    """A range lies outside the registered memory."""


class PeerLost(TransferError):
    """The peer cannot be reached or broke off."""


class Forbidden(TransferError):
    """The peer was granted other bytes, another way, or until earlier."""


class Corrupted(TransferError):
    """Other bytes arrived than were sent: a checksum says so."""


class State(StrEnum):
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    TIMED_OUT = "timed out"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class Descriptor:
    """Where registered memory is, for a peer.

    Attributes:
        backend: Name of the backend that can reach it.
        epoch: Random, new for every registration.
        length: Bytes.
        address: What the backend needs to find it; plain strings and numbers, 4 KiB in all
            (descriptors.py): a peer that says more is refused.
    """

    backend: str
    epoch: str
    length: int
    address: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Range:
    """`length` bytes at `local` of our region and at `remote` of the peer's (offsets)."""

    local: int
    remote: int
    length: int


class Transfer(ABC):
    """A transfer under way. It ends once: done, failed, timed out or cancelled."""

    state: State
    error: TransferError | None

    @abstractmethod
    def add_done_callback(self, callback: Callable[["Transfer"], None]) -> None:
        """Called once, at the end, on any thread; at once if it has ended."""

    @abstractmethod
    def wait(self, timeout_seconds: float) -> None:
        """Blocks to the end. Raises TransferError (state TIMED_OUT at the timeout)."""

    @abstractmethod
    def cancel(self) -> None:
        """We stop waiting. The local range stays dirty until `settled`."""

    @property
    @abstractmethod
    def settled(self) -> bool:
        """No byte can land any more, so the memory may be used again."""

    @abstractmethod
    def settle(self, timeout_seconds: float) -> bool:
        """Blocks until `settled`; False at the timeout. Starts nothing and cancels nothing."""


class Grant(ABC):
    """What one peer may do with a region, until it is revoked.

    Attributes:
        descriptor: For that peer.
    """

    descriptor: Descriptor

    @abstractmethod
    def revoke(self) -> None:
        """Lets the peer in no more and breaks off what it does. Returns when nothing of it moves,
        where the backend can know. What it has written and nobody has expected counts no more.
        """


class Region(ABC):
    """Memory that peers may reach.

    Attributes:
        memory: Its bytes. A region of a device's memory has no such attribute: the host cannot
            touch it.
        descriptor: Of all of it, for good: what a peer gets comes from `grant`.
    """

    memory: memoryview
    descriptor: Descriptor

    @property
    def place(self) -> str:
        """Where the memory is: "host", or the device's name, "cuda:0"."""
        return place(self.descriptor)

    def grant(
        self, peer: str, op: Op, part: Part, seconds: float, immediates: range | None = None
    ) -> Grant:
        """Lets this peer do so with this part, for so long, and count these immediates.

        A backend whose bytes are moved by hardware, by the kernel or by a library grants the whole
        region, and only by not saying where it is to other peers.
        """
        return _Whole(self.descriptor)

    def share(self) -> int | None:
        """A file descriptor for `Backend.adopt` in a process of ours; it stays the region's.

        None where the memory is this process's alone.
        """
        return None

    @abstractmethod
    def close(self) -> None:
        """Peers are refused from now on; memory that the backend allocated is freed."""


def place(descriptor: Descriptor) -> str:
    """Where the memory behind it is: "host", or the name of a device."""
    found = descriptor.address.get(memories.MEMORY, memories.HOST)
    return found if isinstance(found, str) else memories.HOST


class _Whole(Grant):
    def __init__(self, descriptor: Descriptor) -> None:
        self.descriptor = descriptor

    def revoke(self) -> None:
        return


class Backend(ABC):
    """Built with `host` (where it may listen) and `advertise` (what peers dial instead, if
    that differs); a backend's own options come after these and have defaults. One that takes
    `identity` (runtime/fleet.py) gets the engine's, and proves it on every connection.
    """

    name: ClassVar[str]
    moves: ClassVar[frozenset[str]] = frozenset({memories.HOST})
    """Kinds of memory that it takes: "host", "cuda"."""

    @abstractmethod
    def allocate(self, length: int) -> Region:
        """Registered memory of the host, zeroed, of the kind that this backend likes best.

        Raises ValueError, OSError, TransferError.
        """

    def check_pair(self, ours: str, theirs: str) -> None:
        """Raise TransferError, naming both sides, if nothing can move between memory in these two
        places ("host", "cuda:0"). Peers ask it when they meet.
        """
        for one, whose in ((ours, "ours"), (theirs, "the peer's")):
            if memories.kind(one) not in self.moves:
                raise TransferError(
                    f"{self.name} moves {' and '.join(sorted(self.moves))} memory: {ours} here, "
                    f"{theirs} there, and {whose} is none of them"
                )

    def register(self, memory: Memory) -> Region:
        """Memory that the caller has allocated, and keeps until the region is closed.

        Nothing in it is changed by registering. Raises ValueError, OSError, TransferError.
        """
        raise TransferError(f"{self.name} moves only memory that it allocated")

    def adopter_options(self) -> Mapping[str, Any]:
        """What a process that is going to adopt our memory must build its backend with.

        JSON; without what only one of the two can have, such as a port.
        """
        return {}

    def adopt(self, fd: int, length: int) -> Region:
        """Memory that a process of ours allocated and shared: a local side, no more.

        Peers cannot reach it through us, and its descriptor reaches nothing. The caller may
        close `fd`. Raises TransferError, OSError.
        """
        raise TransferError(f"{self.name} cannot move the memory of another process")

    @abstractmethod
    def read(
        self, local: Region, remote: Descriptor, ranges: Sequence[Range], timeout_seconds: float
    ) -> Transfer:
        """Copies the remote ranges into `local`. Raises OutOfBounds, ValueError, TransferError."""

    @abstractmethod
    def write(
        self,
        local: Region,
        remote: Descriptor,
        ranges: Sequence[Range],
        timeout_seconds: float,
        immediate: int | None = None,
    ) -> Transfer:
        """Copies ranges of `local` to the peer, then counts `immediate` there, once per call.

        Raises like `read`. A write that did not end well counts nothing, and its remote
        ranges are dirty.
        """

    @abstractmethod
    def expect(self, local: Region, immediate: int, count: int, timeout_seconds: float) -> Transfer:
        """Ends when `count` writes with this immediate have landed in `local`.

        Those that came before the call count too; those that it waited for are used up.
        An expectation moves nothing, so its `settled` says nothing of writes under way:
        after a cancel or timeout only the peer knows when the memory may be used again.
        """

    @abstractmethod
    def close(self) -> None:
        """Fails everything pending and frees what was allocated."""
