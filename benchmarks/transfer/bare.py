"""What is possible: memcpy into memory that two processes share, and one loopback socket.

The socket sends and receives page after page, from where they are to where they belong, and is
answered with one byte for a call. It is told beforehand what will come, so it knows nothing of
requests, epochs, bounds or counts.
"""

import mmap
import os
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from queue import SimpleQueue
from typing import Any

import numpy as np

from benchmarks.transfer.ends import DONE, SECONDS, Calls, Far, Near
from pdgate.transfer.base import Range

ACK = b"k"


def shared(length: int) -> tuple[int, memoryview]:
    fd = os.memfd_create("pdgate-benchmark")
    os.ftruncate(fd, length)
    return fd, memoryview(mmap.mmap(fd, length))


class FarMapping(Far):
    def __init__(self, length: int) -> None:
        self._fd, self.memory = shared(length)
        self.card = {"file": f"/proc/{os.getpid()}/fd/{self._fd}"}

    def close(self) -> None:
        os.close(self._fd)


class NearMapping(Near):
    """Copies slice by slice, which is NumPy's memcpy."""

    def __init__(self, length: int, card: Mapping[str, Any]) -> None:
        self._fd, self.memory = shared(length)
        with open(card["file"], "r+b") as there:
            self._to = np.frombuffer(mmap.mmap(there.fileno(), length), np.uint8)
        self._from = np.frombuffer(self.memory, np.uint8)

    def begin(self, ranges: Sequence[Range]) -> Callable[[], None]:
        to, source = self._to, self._from
        for one in ranges:
            end = one.remote + one.length
            to[one.remote : end] = source[one.local : one.local + one.length]
        return DONE

    def close(self) -> None:
        os.close(self._fd)


class FarSocket(Far):
    def __init__(self, length: int) -> None:
        self._fd, self.memory = shared(length)
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.card = {"port": self._listening.getsockname()[1]}
        self._expected: SimpleQueue[Calls | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def prepare(self, calls: Calls) -> None:
        self._expected.put(calls)

    def close(self) -> None:
        self._expected.put(None)
        self._thread.join()
        self._listening.close()
        os.close(self._fd)

    def _serve(self) -> None:
        sock, _ = self._listening.accept()
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with sock:
            while (calls := self._expected.get()) is not None:
                for ranges in calls:
                    for one in ranges:
                        self._receive(sock, self.memory[one.remote : one.remote + one.length])
                    sock.sendall(ACK)

    @staticmethod
    def _receive(sock: socket.socket, left: memoryview) -> None:
        while left:
            got = sock.recv_into(left, 0, socket.MSG_WAITALL)
            if got == 0:
                raise ConnectionResetError
            left = left[got:]


class NearSocket(Near):
    def __init__(self, length: int, card: Mapping[str, Any]) -> None:
        self._fd, self.memory = shared(length)
        self._sock = socket.create_connection(("127.0.0.1", card["port"]), SECONDS)
        # As tcp's are: with a timeout each call would ask the kernel twice.
        self._sock.settimeout(None)
        self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def begin(self, ranges: Sequence[Range]) -> Callable[[], None]:
        for one in ranges:
            self._sock.sendall(self.memory[one.local : one.local + one.length])
        return self._acknowledged

    def _acknowledged(self) -> None:
        if self._sock.recv(1) != ACK:
            raise ConnectionResetError

    def close(self) -> None:
        self._sock.close()
        os.close(self._fd)
