"""Peers on the signal plane that are not ours: they say what the test tells them to."""

import json
from typing import Any, Self

import zmq

from tests.support import waiting

SECONDS = waiting.PATIENCE_SECONDS


class _Raw:
    kind: int

    def __init__(self) -> None:
        self._context = zmq.Context()
        self.socket: zmq.Socket[bytes] = self._context.socket(self.kind)
        self.socket.linger = 0
        self.socket.rcvtimeo = int(1000 * SECONDS)

    def close(self) -> None:
        self.socket.close()
        self._context.term()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class RawDecode(_Raw):
    """A DEALER, as the fork's decode has it."""

    kind = zmq.DEALER

    def __init__(self, port: int, identity: str = "127.0.0.1:9") -> None:
        super().__init__()
        self.socket.setsockopt_string(zmq.IDENTITY, identity)
        self.socket.connect(f"tcp://127.0.0.1:{port}")

    def ask(self, message: Any) -> Any:
        return self.ask_bytes(json.dumps(message).encode())

    def ask_bytes(self, data: bytes) -> Any:
        self.socket.send_multipart([b"", data])
        empty, answer = self.socket.recv_multipart()
        assert empty == b""
        return json.loads(answer)

    def look_up(self, uid: str, blocks: list[int | None]) -> Any:
        return self.ask(
            {"request_id": uid, "block_ids_in_peer_device": blocks, "type": "lookup_all"}
        )


class RawPrefill(_Raw):
    """A ROUTER, as the fork's prefill has it."""

    kind = zmq.ROUTER

    def __init__(self, port: int) -> None:
        super().__init__()
        self.socket.bind(f"tcp://127.0.0.1:{port}")
        self.identity = b""

    def next(self) -> Any:
        self.identity, empty, message = self.socket.recv_multipart()
        assert empty == b""
        return json.loads(message)

    def say(self, answer: Any) -> None:
        self.socket.send_multipart([self.identity, b"", json.dumps(answer).encode()])

    def expect(self, kind: str, answer: Any) -> Any:
        """The next message has to be of this type; it is answered and returned."""
        message = self.next()
        assert message["type"] == kind
        self.say(answer)
        return message
