"""Subscriber of one publisher: sockets on one side, the sequence of its batches on the other.

    SUB      topic | number | batch                        --> Sequence.live
    DEALER   asks "" | first number; "" | topic | number | batch, ... the end
                                                           --> Sequence.replayed, replay_over
    monitor  the connection is lost                        --> Sequence.doubt

All on the event loop, without tasks or futures: ZeroMQ's own thread reads from the network, and
when it has something, as much is taken as TURN_SECONDS allow; the rest waits for the next turn,
so that a burst, or the replay of a long history, holds up no call.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Final

import zmq
from zmq.utils.monitor import recv_monitor_message

from pdgate.gateway.kv_events.events import MOST_BATCH_BYTES
from pdgate.gateway.kv_events.sequence import Sequence, SequenceCounts
from pdgate.gateway.kv_events.sources import EventSource

TURN_SECONDS: Final = 0.001
REST_SECONDS: Final = 0.009
"""Between two turns of a feed that has more: a tenth of a core is all it gets."""

REPLAY_SECONDS: Final = 5.0
"""Of silence, after which a replay has failed."""

IDLE_SECONDS: Final = 15.0
"""Of silence, after which it is asked whether anything was missed."""

SETTLE_SECONDS: Final = 2.0
"""After connecting; then it is asked for the first time."""

MOST_WAITING: Final = 128
"""Batches in each socket. More wait at the publisher, or are asked for anew: a replay of the 10,000 that
one keeps by default may take several questions."""

MAX_BATCH_BYTES: Final = 2 * MOST_BATCH_BYTES
"""Of a message; of a longer one ZeroMQ closes the connection. So 256 MiB wait in a socket at most."""

END: Final = b"\xff" * 8
NUMBER_BYTES: Final = 8

Taken = Callable[[bytes], None]


class Subscriber:
    """
    Attributes:
        counts: Of batches, gaps, replays.
        sequence: Of the publisher's batches.
        malformed: Messages that were no batches.
        connected: To the publisher, as far as the network says.
    """

    def __init__(
        self,
        context: "zmq.Context[zmq.Socket[bytes]]",
        source: EventSource,
        taken: Taken,
        forget: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """
        Args:
            taken: Gets every batch, in order.
            forget: Told when what was taken is not true any more.
        """
        self.source = source
        self.counts = SequenceCounts()
        self.malformed = 0
        self.connected = False
        self.taken, self.forget = taken, forget
        self._context = context
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self.sequence = Sequence(self, self.counts, replays=bool(source.replay_endpoint))
        self._open = True
        self._resting = False
        self._first_asked: int | None = None
        self._heard = clock()
        self._listening = self._socket(zmq.SUB)
        self._listening.setsockopt(zmq.SUBSCRIBE, source.topic.encode())
        self._monitor = self._listening.get_monitor_socket(
            zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED
        )
        self._asking = self._dealer()
        for socket in (self._listening, self._monitor):
            self._loop.add_reader(socket.fileno(), self._turn)
        self._listening.connect(source.endpoint)
        self.sequence.start()
        self._loop.call_soon(self._turn)

    def close(self) -> None:
        self._open = False
        for socket in (self._listening, self._monitor):
            self._loop.remove_reader(socket.fileno())
        self._listening.disable_monitor()
        self._monitor.close(linger=0)
        self._listening.close(linger=0)
        self._close_dealer()

    def ask(self, first: int) -> None:
        self._first_asked = first
        self._heard = self._clock()
        self._loop.call_soon(self._turn)

    def look(self) -> None:
        """Called about once a second: is it too quiet?"""
        silent_seconds = self._clock() - self._heard
        if self.sequence.replaying:
            if silent_seconds > REPLAY_SECONDS:
                # What is still to come of this replay must not be taken for the next.
                self._close_dealer()
                self._asking, self._first_asked = self._dealer(), None
                self.sequence.replay_failed()
        elif silent_seconds > IDLE_SECONDS:
            self._heard = self._clock()
            self.sequence.check()
        self._turn()

    def _socket(self, kind: int) -> "zmq.Socket[bytes]":
        socket = self._context.socket(kind)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.IPV6, 1)
        socket.setsockopt(zmq.RCVHWM, MOST_WAITING)
        socket.setsockopt(zmq.MAXMSGSIZE, MAX_BATCH_BYTES)
        socket.setsockopt(zmq.RECONNECT_IVL_MAX, 2000)
        if self.source.proven is not None:
            self.source.proven.of(socket)
        return socket

    def _dealer(self) -> "zmq.Socket[bytes] | None":
        if not self.source.replay_endpoint:
            return None
        socket = self._socket(zmq.DEALER)
        # A question is for the publisher that is there now.
        socket.setsockopt(zmq.IMMEDIATE, 1)
        socket.connect(self.source.replay_endpoint)
        self._loop.add_reader(socket.fileno(), self._turn)
        return socket

    def _close_dealer(self) -> None:
        if self._asking is not None:
            self._loop.remove_reader(self._asking.fileno())
            self._asking.close(linger=0)

    def _turn(self) -> None:
        """All that has come, as far as the time allows.

        A socket's file descriptor tells of news once only, so it is read until it has nothing,
        also after something was written to it.
        """
        if not self._open or self._resting:
            return
        until = self._clock() + TURN_SECONDS
        while self._watch():
            pass
        self._ask()
        for hear in (self._hear_replay, self._hear):
            while hear():
                if self._clock() > until:
                    self._resting = True
                    self._loop.call_later(REST_SECONDS, self._rested)
                    return
        if self._first_asked is not None:
            # Reading may have been what noticed that the publisher is there now.
            self._ask()
            if self._first_asked is None:
                self._loop.call_soon(self._turn)

    def _rested(self) -> None:
        self._resting = False
        self._turn()

    def _watch(self) -> bool:
        try:
            event = recv_monitor_message(self._monitor, zmq.NOBLOCK)
        except zmq.Again:
            return False
        self.connected = event["event"] == zmq.EVENT_HANDSHAKE_SUCCEEDED
        if self.connected:
            # A subscription takes a moment, in which something may have been missed.
            self._heard = min(self._heard, self._clock() - IDLE_SECONDS + SETTLE_SECONDS)
        else:
            self.sequence.doubt()
        return True

    def _ask(self) -> None:
        if self._first_asked is None or self._asking is None:
            return
        number = self._first_asked.to_bytes(NUMBER_BYTES, "big")
        try:
            self._asking.send_multipart((b"", number), zmq.NOBLOCK)
        except zmq.Again:
            # The publisher is not there yet; the file descriptor tells when.
            return
        self._first_asked = None

    def _hear_replay(self) -> bool:
        if self._asking is None:
            return False
        try:
            frames = self._asking.recv_multipart(zmq.NOBLOCK)
        except zmq.Again:
            return False
        self._heard = self._clock()
        # Older vLLM leaves the topic out.
        if len(frames) not in (3, 4) or len(frames[-2]) != NUMBER_BYTES:
            self.malformed += 1
        elif frames[-2] == END:
            self.sequence.replay_over()
        else:
            self.sequence.replayed(int.from_bytes(frames[-2]), frames[-1])
        return True

    def _hear(self) -> bool:
        try:
            frames = self._listening.recv_multipart(zmq.NOBLOCK)
        except zmq.Again:
            return False
        self._heard = self._clock()
        if len(frames) != 3 or len(frames[1]) != NUMBER_BYTES:
            self.malformed += 1
        else:
            self.sequence.live(int.from_bytes(frames[1]), frames[2])
        return True
