"""P's end of a connection, for threads that must not wait for D to read."""

import select
import socket
import threading
import time

from pdgate.transfer.messenger import messages
from pdgate.transfer.runtime.channel import Channel
from pdgate.transfer.runtime.sockets import gone

MAX_UNREAD_BYTES = 64 << 10
"""Of ours, which a peer may let pile up; about, as the kernel rounds it."""
ANSWER_SECONDS = 10.0


class MessengerLine:
    """Attributes:
    peer: D's name, which it has proven.
    """

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._sock = sock = channel.sock
        self.peer = channel.peer
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, MAX_UNREAD_BYTES)
        self._room = select.poll()
        self._room.register(sock, select.POLLOUT)
        self._lock = threading.Lock()
        self._lost = False

    def fileno(self) -> int:
        """Of what the peer sees the end of."""
        return self._channel.wire.fileno()

    def gone(self) -> bool:
        """Whether the peer has hung up, of one that waits for our answer and says nothing."""
        return gone(self._sock)

    def receive(self, seconds: float | None) -> messages.Message | None:
        """None when the peer hung up or `say` gave it up. `seconds` are for a whole message. Raises BadMessage, OSError."""
        self._sock.settimeout(seconds)
        until = None if seconds is None else time.monotonic() + seconds
        return None if self._lost else messages.receive(self._channel, until)

    def answer(self, message: messages.Message) -> None:
        """May wait for the peer to read, so only where no other thread says anything.

        Raises OSError.
        """
        with self._lock:
            self._sock.settimeout(ANSWER_SECONDS)
            messages.send(self._channel, message)

    def say(self, message: messages.Message) -> None:
        """Never blocks: a peer that lets its answers pile up has lost its connection."""
        with self._lock:
            data = messages.frame(self._channel, message)
            if self._send(data) < len(data):
                self._give_up()

    def _send(self, data: bytes) -> int:
        """How much of it the kernel took at once."""
        # Python waits for room before it sends, whatever the flags, if there is a timeout.
        if not self._room.poll(0):
            return 0
        try:
            return self._sock.send(data, socket.MSG_DONTWAIT)
        except OSError:
            return 0

    def _give_up(self) -> None:
        """Ends our reading only: the peer may see the end when nothing can land any more."""
        self._lost = True
        try:
            self._sock.shutdown(socket.SHUT_RD)
        except OSError:
            return
