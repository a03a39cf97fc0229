"""Publishes numbered batches over ZeroMQ, and repeats those that a listener has missed.

    PUB     topic | number, 8 bytes, big endian | [seconds, [event, ...], rank] in msgpack
    ROUTER  asked:    "" | first number
            answers:  "" | topic | number | batch    for each that is still kept
                      "" | ""    | -1     | ""       at the end

Source: vLLM 0.32.0, vllm/distributed/kv_events.py, ZmqEventPublisher.
"""

import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
import zmq

END: Final = (-1).to_bytes(8, "big", signed=True)
NUMBER_BYTES: Final = 8
BUFFER_BATCHES: Final = 10_000
HIGH_WATER_MARK: Final = 100_000


class Publisher:
    """`publish` is called on one thread; replays are answered on another, which ends in `close`.

    Attributes:
        endpoint, replay_endpoint: Where it listens, with the port that it got.
    """

    def __init__(
        self,
        endpoint: str,
        replay_endpoint: str = "",
        topic: str = "",
        *,
        keeps: int = BUFFER_BATCHES,
        rank: int = 0,
    ) -> None:
        """Raises OSError (as ZMQError) where it cannot listen.

        Args:
            replay_endpoint: Empty for no replays.
            keeps: So many batches, to repeat them.
        """
        self.topic = topic
        self.keeps = keeps
        self._rank = rank
        self._next = 0
        self._encode = msgspec.msgpack.Encoder().encode
        self._kept: deque[tuple[int, bytes]] = deque(maxlen=keeps)
        self._keeping = threading.Lock()
        self._context = zmq.Context()
        self._pub = self._socket(zmq.PUB)
        self._pub.set_hwm(HIGH_WATER_MARK)
        self.endpoint = _bind(self._pub, endpoint)
        self.replay_endpoint = ""
        self._thread: threading.Thread | None = None
        # Its peer's end makes the thread stop waiting for questions.
        self._stop = self._socket(zmq.PAIR)
        self._stop.bind("inproc://stop")
        if replay_endpoint:
            router = self._socket(zmq.ROUTER)
            # A replay is written at once, however slowly it is read.
            router.set_hwm(HIGH_WATER_MARK)
            self.replay_endpoint = _bind(router, replay_endpoint)
            stopped = self._socket(zmq.PAIR)
            stopped.connect("inproc://stop")
            self._thread = threading.Thread(
                target=self._replay, args=(router, stopped), name="kv-event-replay", daemon=True
            )
            self._thread.start()

    def publish(self, events: Sequence[Mapping[str, Any]]) -> None:
        batch = self._encode([time.time(), events, self._rank])
        number, self._next = self._next, self._next + 1
        with self._keeping:
            self._kept.append((number, batch))
        self._send((self.topic.encode(), number.to_bytes(NUMBER_BYTES, "big"), batch))

    def close(self) -> None:
        if self._thread is not None:
            self._stop.send(b"")
            self._thread.join()
        self._stop.close(linger=0)
        self._pub.close(linger=0)
        self._context.term()

    def _send(self, frames: Sequence[bytes]) -> None:
        """Without waiting: who does not listen misses it."""
        self._pub.send_multipart(frames, zmq.NOBLOCK)

    def _socket(self, kind: int) -> "zmq.Socket[bytes]":
        socket = self._context.socket(kind)
        socket.setsockopt(zmq.IPV6, 1)
        socket.setsockopt(zmq.LINGER, 0)
        return socket

    def _replay(self, router: "zmq.Socket[bytes]", stopped: "zmq.Socket[bytes]") -> None:
        poller = zmq.Poller()
        for socket in (router, stopped):
            poller.register(socket, zmq.POLLIN)
        with router, stopped:
            while stopped not in dict(poller.poll()):
                self._answer(router, router.recv_multipart())

    def _answer(self, router: "zmq.Socket[bytes]", asked: list[bytes]) -> None:
        if len(asked) != 3 or len(asked[2]) != NUMBER_BYTES:
            return
        peer, first = asked[0], int.from_bytes(asked[2])
        with self._keeping:
            kept = list(self._kept)
        topic = self.topic.encode()
        for number, batch in kept:
            if number >= first:
                at = number.to_bytes(NUMBER_BYTES, "big")
                router.send_multipart((peer, b"", topic, at, batch))
        router.send_multipart((peer, b"", b"", END, b""))


def _bind(socket: "zmq.Socket[bytes]", endpoint: str) -> str:
    socket.bind(endpoint)
    return socket.getsockopt_string(zmq.LAST_ENDPOINT)
