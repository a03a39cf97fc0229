"""D's connection to one P: a message, its answer, and what the connection itself tells.

A DEALER would dial for ever and queue what it cannot send. So its monitor is read as well:
nobody listens, or the connection broke, is a peer that is gone; no answer, one that is silent.
"""

import time
from types import TracebackType
from typing import Final, Self

import zmq
from zmq.utils.monitor import recv_monitor_message

from pdgate.cluster import address
from pdgate.engine.neuron import messages
from pdgate.engine.neuron.messages import Message
from pdgate.engine.neuron.wake import Wake
from pdgate.transfer.messenger.errors import HandOverError, Why

GONE: Final = zmq.EVENT_CONNECT_RETRIED | zmq.EVENT_DISCONNECTED


class Dealer:
    """For one thread, but for `wake`.

    Attributes:
        gone: The peer has ended, or never was there: it writes nothing any more.
    """

    def __init__(self, identity: str, host: str, port: int, silence_seconds: float) -> None:
        self.name = address.joined(host, port)
        self.gone = False
        self.heard = time.monotonic()
        self.wake = Wake()
        self._silence_seconds = silence_seconds
        self._context = zmq.Context()
        self._socket: zmq.Socket[bytes] = self._context.socket(zmq.DEALER)
        self._socket.linger = 0
        self._socket.ipv6 = True
        self._socket.connect_timeout = int(1000 * silence_seconds)
        self._socket.setsockopt_string(zmq.IDENTITY, identity)
        self._monitor = self._socket.get_monitor_socket(GONE)
        self._poller = zmq.Poller()
        for one in (self._socket, self._monitor, self.wake.fileno()):
            self._poller.register(one, zmq.POLLIN)

    def connect(self) -> None:
        """Begins to; and asks who is there. Raises HandOverError."""
        try:
            self._socket.connect(f"tcp://{self.name}")
        except zmq.ZMQError as error:
            raise HandOverError(Why.BROKEN, f"{self.name}: {error}") from None
        said = self.ask(messages.handshake())
        while "timestamp" not in said:
            # Meant for an engine that had our identity before us.
            said = self._answer(time.monotonic() + self._silence_seconds)

    def ask(self, message: Message) -> Message:
        """Raises HandOverError: the peer is gone, silent, or says what is no message."""
        self._look()
        try:
            self._socket.send_multipart(messages.encode(message), zmq.NOBLOCK)
        except zmq.Again:
            raise HandOverError(Why.SILENT, f"{self.name} takes no messages") from None
        return self._answer(time.monotonic() + self._silence_seconds)

    def wait(self, until: float) -> None:
        """Until then, or until `wake`. Raises HandOverError if the peer goes meanwhile."""
        seconds = until - time.monotonic()
        if seconds > 0:
            self._poller.poll(None if seconds == float("inf") else int(1000 * seconds) + 1)
        self.wake.clear()
        self._look()

    def close(self) -> None:
        self._socket.disable_monitor()
        self._monitor.close()
        self._socket.close()
        self._context.term()
        self.wake.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.close()

    def _answer(self, until: float) -> Message:
        while True:
            self._look()
            try:
                frames = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                left = until - time.monotonic()
                if left <= 0:
                    raise HandOverError(
                        Why.SILENT, f"{self.name} has not answered in {self._silence_seconds:g} s"
                    ) from None
                # Woken for something else, it is looked at after the answer.
                self._poller.poll(min(50, int(1000 * left) + 1))
                continue
            self.heard = time.monotonic()
            try:
                return messages.decode(frames)
            except (ValueError, RecursionError) as error:
                raise HandOverError(Why.BROKEN, f"{self.name} says {error}") from None

    def _look(self) -> None:
        """Raises HandOverError if the connection is gone."""
        while self._monitor.poll(0):
            event = recv_monitor_message(self._monitor, zmq.NOBLOCK)["event"]
            if event & GONE:
                self.gone = True
        if self.gone:
            raise HandOverError(Why.BROKEN, f"nobody is at {self.name}, or not any more")
