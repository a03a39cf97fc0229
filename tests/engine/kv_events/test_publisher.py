"""Batches are numbered, published, and repeated to who asks; on the wire as vLLM's are."""

from collections.abc import Iterator

import msgspec
import pytest
import zmq

from pdgate.engine.kv_events.publisher import END, Publisher

PATIENCE_MS = 20_000
EVENT = {"type": "AllBlocksCleared"}


class Open:
    """Sockets of one test."""

    def __init__(self) -> None:
        self._context = zmq.Context()
        self._sockets: list[zmq.Socket[bytes]] = []

    def socket(self, kind: int) -> "zmq.Socket[bytes]":
        socket = self._context.socket(kind)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.RCVTIMEO, PATIENCE_MS)
        self._sockets.append(socket)
        return socket

    def close(self) -> None:
        for socket in self._sockets:
            socket.close()
        self._context.term()


@pytest.fixture
def sockets() -> Iterator[Open]:
    sockets = Open()
    yield sockets
    sockets.close()


@pytest.fixture
def publisher() -> Iterator[Publisher]:
    publisher = Publisher("tcp://127.0.0.1:0", "tcp://127.0.0.1:0", "kv", keeps=2, rank=3)
    yield publisher
    publisher.close()


def replay(asking: "zmq.Socket[bytes]", first: int) -> list[list[bytes]]:
    asking.send_multipart((b"", first.to_bytes(8, "big")))
    frames: list[list[bytes]] = []
    while not frames or frames[-1][2] != END:
        frames.append(asking.recv_multipart())
    return frames


def test_a_listener_hears_batches_in_order(sockets: Open, publisher: Publisher) -> None:
    listening = sockets.socket(zmq.SUB)
    listening.connect(publisher.endpoint)
    listening.subscribe(b"kv")
    # A subscription takes a moment; until then nothing that is published is heard.
    listening.setsockopt(zmq.RCVTIMEO, 20)
    heard = None
    while heard is None:
        publisher.publish([EVENT])
        try:
            heard = listening.recv_multipart()
        except zmq.Again:
            continue
    listening.setsockopt(zmq.RCVTIMEO, PATIENCE_MS)
    publisher.publish([EVENT, EVENT])

    following = int.from_bytes(heard[1]) + 1
    # On a busy machine several were published before the first was heard.
    while True:
        topic, number, batch = listening.recv_multipart()
        assert (topic, int.from_bytes(number)) == (b"kv", following)
        at, events, rank = msgspec.msgpack.decode(batch)
        if events != [EVENT]:
            break
        following += 1
    assert (events, rank) == ([EVENT, EVENT], 3)
    assert isinstance(at, float)


def test_what_was_missed_is_repeated_as_far_as_it_is_kept(
    sockets: Open, publisher: Publisher
) -> None:
    for _ in range(3):
        publisher.publish([EVENT])
    asking = sockets.socket(zmq.DEALER)
    asking.connect(publisher.replay_endpoint)

    everything, last, nothing = (replay(asking, first) for first in (0, 2, 3))

    assert [int.from_bytes(frames[2]) for frames in everything[:-1]] == [1, 2]
    assert everything[0][:2] == [b"", b"kv"]
    assert [int.from_bytes(frames[2]) for frames in last[:-1]] == [2]
    assert nothing == [[b"", b"", END, b""]]


def test_a_question_that_makes_no_sense_is_not_answered(
    sockets: Open, publisher: Publisher
) -> None:
    asking = sockets.socket(zmq.DEALER)
    asking.connect(publisher.replay_endpoint)
    for nonsense in ([b""], [b"", b"now"], [b"", b"", b"", b""]):
        asking.send_multipart(nonsense)

    assert replay(asking, 0) == [[b"", b"", END, b""]]


def test_without_an_endpoint_for_replays_it_only_publishes() -> None:
    publisher = Publisher("tcp://127.0.0.1:0")
    publisher.publish([EVENT])

    assert publisher.replay_endpoint == ""
    publisher.close()
