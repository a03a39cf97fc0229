"""D's connection to one P: a message, its answer, and the end of the connection.

A DEALER would dial for ever and queue what it cannot send. So its monitor is read as well:
nothing listens, or the connection broke, is a peer that is gone; no answer, one that is silent.
"""

import secrets
import time
from typing import Final, Self

import zmq
from zmq.utils.monitor import recv_monitor_message

from pdgate.cluster import address
from pdgate.engine.neuron import messages
from pdgate.engine.neuron.messages import Message
from pdgate.engine.neuron.proof import Host
from pdgate.engine.neuron.wake import Wake
from pdgate.transfer.messenger.errors import HandOverError, Why
from pdgate.transfer.runtime.fleet import Identity, loopback
from pdgate.transfer.runtime.handshake import Unproven

TAIL: Final = "~"
"""Between an engine's address and a random part, in its ZMQ identity."""
GONE: Final = zmq.EVENT_CONNECT_RETRIED | zmq.EVENT_DISCONNECTED


class Dealer:
    """For one thread, but for `wake`.

    Attributes:
        gone: The peer has ended, or never was there: it writes nothing any more.
    """

    def __init__(
        self, identity: str, host: str, port: int, silence_seconds: float, ours: Identity
    ) -> None:
        """`identity` is ZMQ's, `ours` what we prove."""
        self._open_loopback_only = ours.is_open and not loopback(host)
        self._host = Host(ours)
        if not ours.is_open:
            # Who cannot guess it cannot take its place (ROUTER_HANDOVER at the other end).
            identity += TAIL + secrets.token_hex(16)
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
        """Begins to; and asks which peer is there. Raises HandOverError."""
        if self._open_loopback_only:
            raise HandOverError(
                Why.UNPROVEN, f"{self.name} is not loopback, and we have no KV secret"
            )
        try:
            self._socket.connect(f"tcp://{self.name}")
        except zmq.ZMQError as error:
            raise HandOverError(Why.BROKEN, f"{self.name}: {error}") from None
        said = self.ask(self._host.handshake())
        while "timestamp" not in said:
            messages.raise_error(said)
            # Meant for an engine that had our identity before us.
            said = self._answer(time.monotonic() + self._silence_seconds)
        try:
            proof = self._host.welcomed(said)
        except Unproven as error:
            raise HandOverError(Why.UNPROVEN, f"{self.name}: {error}") from None
        if proof is not None:
            messages.raise_error(self._asked(proof))

    @property
    def peer(self) -> str:
        """Name of P's process, as it was proven; empty where nothing is to be proven."""
        return self._host.name

    def ask(self, message: Message) -> Message:
        """Raises HandOverError: the peer is gone, silent, or says what is no message."""
        self._look()
        return self._asked(self._host.frames(message))

    def _asked(self, frames: list[bytes]) -> Message:
        try:
            self._socket.send_multipart(frames, zmq.NOBLOCK)
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

    def __exit__(self, *_: object) -> None:
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
                return self._host.message(frames)
            except Unproven as error:
                raise HandOverError(Why.UNPROVEN, f"{self.name}: {error}") from None
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
