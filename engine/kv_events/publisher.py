"""Publisher of numbered batches over ZeroMQ, which repeats those that a listener has missed.

    PUB     topic | number, 8 bytes, big endian | [seconds, [event, ...], rank] in msgpack
    ROUTER  asked:    "" | first number
            answers:  "" | topic | number | batch    for each that is still kept
                      "" | ""    | -1     | ""       at the end

Where the fleet has a secret, both are CURVE sockets, for listeners whose keys it makes (cluster/kv_events/curve.py);
without one they take no proof, so that they are for loopback.

Source: vLLM 0.32.0, vllm/distributed/kv_events.py, ZmqEventPublisher; RFC 27/ZAP.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec
import zmq
from zmq.utils import z85

from pdgate.cluster.kv_events import curve
from pdgate.transfer.runtime.fleet import Identity
from pdgate.transfer.runtime.refusals import Reason

END: Final = (-1).to_bytes(8, "big", signed=True)
NUMBER_BYTES: Final = 8
BUFFER_BATCHES: Final = 10_000
HIGH_WATER_MARK: Final = 100_000
MAX_QUESTION_BYTES: Final = 1024
HANDSHAKE_MILLISECONDS: Final = 5000
"""ZMTP's own: a stranger that says nothing is gone then."""
ZAP: Final = "inproc://zeromq.zap.01"
"""Where libzmq asks whether a key may come in."""


class Publisher:
    """`publish` is called on one thread; replays, and questions of who may listen, are answered on
    another, which ends in `close`.

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
        identity: Identity | None = None,
    ) -> None:
        """Raises OSError (as ZMQError) where it cannot listen.

        Args:
            replay_endpoint: Empty for no replays.
            keeps: So many batches, to repeat them.
            identity: Whose secrets listeners have to know, if it has any.
        """
        self.topic = topic
        self.keeps = keeps
        self._rank = rank
        self._next = 0
        self._encode = msgspec.msgpack.Encoder().encode
        self._kept: deque[tuple[int, bytes]] = deque(maxlen=keeps)
        self._keeping = threading.Lock()
        self._identity = identity or Identity()
        self._pair = None if self._identity.is_open else curve.publisher()
        self._context = zmq.Context()
        try:
            self._open(endpoint, replay_endpoint)
        except BaseException:
            self._context.destroy(linger=0)
            raise

    @property
    def introduction(self) -> Mapping[str, str] | None:
        """What listeners have to know, by the secret that comes first now; None without one."""
        if self._pair is None:
            return None
        return curve.introduction(self._identity.keyring.texts()[0], self._pair.public)

    def publish(self, events: Sequence[Mapping[str, Any]]) -> None:
        batch = self._encode([time.time(), events, self._rank])
        number, self._next = self._next, self._next + 1
        with self._keeping:
            self._kept.append((number, batch))
        self._send((self.topic.encode(), number.to_bytes(NUMBER_BYTES, "big"), batch))

    def close(self) -> None:
        self._stop.send(b"")
        self._thread.join()
        self._stop.close(linger=0)
        self._pub.close(linger=0)
        self._context.term()

    def _open(self, endpoint: str, replay_endpoint: str) -> None:
        # Its peer's end makes the thread stop waiting for questions.
        self._stop = self._socket(zmq.PAIR)
        self._stop.bind("inproc://stop")
        stopped = self._socket(zmq.PAIR)
        stopped.connect("inproc://stop")
        answers: dict[zmq.Socket[bytes], _Answer] = {}
        if self._pair is not None:
            # Before anything listens: no peer is let in unasked.
            doorkeeper = self._socket(zmq.REP)
            doorkeeper.bind(ZAP)
            answers[doorkeeper] = self._let_in
        self._pub = self._listening(zmq.PUB)
        self.endpoint = _bind(self._pub, endpoint)
        self.replay_endpoint = ""
        if replay_endpoint:
            router = self._listening(zmq.ROUTER)
            self.replay_endpoint = _bind(router, replay_endpoint)
            answers[router] = self._repeat
        self._thread = threading.Thread(
            target=self._answer, args=(answers, stopped), name="kv-events", daemon=True
        )
        self._thread.start()

    def _send(self, frames: Sequence[bytes]) -> None:
        """Without waiting: who does not listen misses it."""
        self._pub.send_multipart(frames, zmq.NOBLOCK)

    def _socket(self, kind: int) -> "zmq.Socket[bytes]":
        socket = self._context.socket(kind)
        socket.setsockopt(zmq.LINGER, 0)
        return socket

    def _listening(self, kind: int) -> "zmq.Socket[bytes]":
        socket = self._socket(kind)
        socket.setsockopt(zmq.IPV6, 1)
        socket.setsockopt(zmq.MAXMSGSIZE, MAX_QUESTION_BYTES)
        socket.setsockopt(zmq.HANDSHAKE_IVL, HANDSHAKE_MILLISECONDS)
        # A replay is written at once, however slowly it is read.
        socket.set_hwm(HIGH_WATER_MARK)
        if self._pair is not None:
            socket.curve_server = True
            socket.curve_secretkey = self._pair.private
            socket.zap_domain = curve.DOMAIN
        return socket

    def _answer(
        self, answers: "Mapping[zmq.Socket[bytes], _Answer]", stopped: "zmq.Socket[bytes]"
    ) -> None:
        poller = zmq.Poller()
        for socket in (*answers, stopped):
            poller.register(socket, zmq.POLLIN)
        try:
            while stopped not in (ready := dict(poller.poll())):
                for socket in ready:
                    answers[socket](socket, socket.recv_multipart())
        finally:
            for socket in (*answers, stopped):
                socket.close()

    def _let_in(self, doorkeeper: "zmq.Socket[bytes]", asked: list[bytes]) -> None:
        """Whether the peer with this key may come in, by the secrets of now."""
        version, question, _, _, _, mechanism, *credentials = asked
        known = [curve.listener(secret).public for secret in self._identity.keyring.texts()]
        knows = (
            mechanism == b"CURVE" and len(credentials) == 1 and z85.encode(credentials[0]) in known
        )
        if not knows:
            self._identity.refusals.add("kv-events", Reason.SECRET)
        status = (b"200", b"") if knows else (b"400", b"no listener of this fleet")
        doorkeeper.send_multipart((version, question, *status, b"", b""))

    def _repeat(self, router: "zmq.Socket[bytes]", asked: list[bytes]) -> None:
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


_Answer = Callable[["zmq.Socket[bytes]", list[bytes]], None]
"""To what has come to a socket, on that socket."""


def _bind(socket: "zmq.Socket[bytes]", endpoint: str) -> str:
    socket.bind(endpoint)
    return socket.getsockopt_string(zmq.LAST_ENDPOINT)
