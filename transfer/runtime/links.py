"""Proven connections to owners, kept for the next transfer."""

import threading
from collections.abc import Callable
from dataclasses import dataclass

from pdgate.transfer.runtime.channel import Channel, Watch, dial
from pdgate.transfer.runtime.fleet import Identity
from pdgate.transfer.runtime.sockets import all_hung_up, hung_up

CONNECT_SECONDS = 5.0
MAX_IDLE_PER_PEER = 8


@dataclass(frozen=True, slots=True)
class Address:
    """
    Attributes:
        peer: Name of the process that has to answer; empty if it is not known.
    """

    host: str
    port: int
    peer: str = ""


def _nothing(address: Address) -> None:
    """For who keeps nothing of a peer but its connections."""


class Links:
    def __init__(
        self, identity: Identity, purpose: str, gone: Callable[[Address], None] = _nothing
    ) -> None:
        """`gone`: told of an address to which no connection is left, idle or in use. With the lock, so that
        no next one begins meanwhile: it is not to call us.
        """
        self._gone = gone
        self._identity = identity
        self._purpose = purpose
        self._lock = threading.Lock()
        self._idle: dict[Address, list[Channel]] = {}
        self._in_use: dict[Address, int] = {}
        self._closed = False

    def take(self, address: Address, watch: Watch | None = None) -> Channel:
        """An idle connection that is still up, or a new one; `watch` as in `dial`. Blocking:
        to stop a transfer its socket is shut down. It comes back by `give_back` or `drop`. Raises OSError, of
        which Unproven.
        """
        with self._lock:
            self._in_use[address] = self._in_use.get(address, 0) + 1
            channel = self._pop(address)
        try:
            while channel is not None:
                if not hung_up(channel.sock):
                    return channel
                channel.close()
                with self._lock:
                    channel = self._pop(address)
            self._sweep()
            return dial(
                (address.host, address.port),
                self._identity,
                self._purpose,
                CONNECT_SECONDS,
                peer=address.peer,
                watch=watch,
            )
        except BaseException:
            self._end(address)
            raise

    def drop(self, address: Address, channel: Channel) -> None:
        """One that was taken and is of no use any more."""
        channel.close()
        self._end(address)

    def give_back(self, address: Address, channel: Channel) -> None:
        with self._lock:
            self._one_less(address)
            if not self._closed and len(self._idle.get(address, ())) < MAX_IDLE_PER_PEER:
                self._idle.setdefault(address, []).append(channel)
                return
        channel.close()

    def _sweep(self) -> None:
        """Lets go of peers that are gone. Their next life has another port and name, so their own
        connections are not asked for again.
        """
        with self._lock:
            idle = [channel for channels in self._idle.values() for channel in channels]
            dead = set(all_hung_up([channel.sock for channel in idle]))
            gone = [channel for channel in idle if channel.sock in dead]
            left = {
                address: [channel for channel in channels if channel.sock not in dead]
                for address, channels in self._idle.items()
            }
            self._idle = {address: channels for address, channels in left.items() if channels}
            for address in left:
                self._look(address)
        for channel in gone:
            channel.close()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            left = [channel for channels in self._idle.values() for channel in channels]
            self._idle.clear()
        for channel in left:
            channel.close()

    def _pop(self, address: Address) -> Channel | None:
        """With the lock."""
        idle = self._idle.get(address)
        if not idle:
            return None
        channel = idle.pop()
        if not idle:
            del self._idle[address]
        return channel

    def _end(self, address: Address) -> None:
        with self._lock:
            self._one_less(address)
            self._look(address)

    def _one_less(self, address: Address) -> None:
        """With the lock."""
        left = self._in_use[address] - 1
        if left:
            self._in_use[address] = left
        else:
            del self._in_use[address]

    def _look(self, address: Address) -> None:
        """With the lock."""
        if not self._closed and address not in self._idle and address not in self._in_use:
            self._gone(address)
