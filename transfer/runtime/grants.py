"""Grants of a part of a region, for backends whose owner sees every request before it moves."""

import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from enum import Enum, auto
from typing import Final, Generic, TypeVar

from pdgate.transfer.base import Descriptor, Grant, Op
from pdgate.transfer.descriptors import new_epoch
from pdgate.transfer.parts import Part
from pdgate.transfer.runtime.listener import shut
from pdgate.transfer.runtime.regions import LocalMemory, forget

CLOSE_SECONDS: Final = 5.0
LEAVE_SECONDS: Final = 0.5

R = TypeVar("R", bound=LocalMemory)


class GrantVerdict(Enum):
    FINE = auto()
    STALE = auto()
    FORBIDDEN = auto()


class Entrance:
    """Lets connections use memory until it is shut, which breaks off those that are inside."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._users: set[socket.socket] = set()
        self._shut = False

    @contextmanager
    def used_by(self, sock: socket.socket) -> Iterator[bool]:
        """False if it is shut."""
        with self._changed:
            usable = not self._shut
            if usable:
                self._users.add(sock)
        try:
            yield usable
        finally:
            with self._changed:
                self._users.discard(sock)
                self._changed.notify_all()

    def shut(self, grace_seconds: float = 0.0) -> bool:
        """Returns when no transfer is inside any more; False if it was shut before."""
        with self._changed:
            if self._shut:
                return False
            self._shut = True
            self._changed.wait_for(lambda: not self._users, grace_seconds)
            for sock in self._users:
                shut(sock)
            self._changed.wait_for(lambda: not self._users, CLOSE_SECONDS)
        return True


class PartGrant(Grant, Generic[R]):
    """A part of a region, for one peer."""

    def __init__(
        self,
        region: R,
        peer: str,
        op: Op,
        part: Part,
        seconds: float,
        immediates: range | None,
        forget: Callable[["PartGrant[R]"], None],
    ) -> None:
        """`peer`: empty for any that has the descriptor. `forget` is called first by `revoke`."""
        there = region.descriptor
        self.descriptor = Descriptor(there.backend, new_epoch(), there.length, there.address)
        self.region = region
        self._peer = peer
        self._op = op
        self._part = part
        self._until = time.monotonic() + seconds
        self._immediates = immediates
        self._forget = forget
        self._entrance = Entrance()

    def revoke(self) -> None:
        self._forget(self)
        # A peer that has just heard that all is there is about to leave by itself.
        self._entrance.shut(LEAVE_SECONDS)
        forget(self.region, self._immediates)

    def used_by(self, sock: socket.socket) -> AbstractContextManager[bool]:
        return self._entrance.used_by(sock)

    def judge(
        self,
        peer: str | None,
        op: Op,
        offsets: Sequence[int],
        lengths: Sequence[int],
        immediate: int | None,
    ) -> GrantVerdict:
        """Of a request that lies inside the region. `peer`: None where names are not proven."""
        if time.monotonic() > self._until or (peer is not None and self._peer not in ("", peer)):
            return GrantVerdict.STALE
        fine = (
            op is self._op
            and (immediate is None or self._immediates is None or immediate in self._immediates)
            and self._part.covers(offsets, lengths)
        )
        return GrantVerdict.FINE if fine else GrantVerdict.FORBIDDEN
