"""The two ends of a communicator over a real backend, pumped by the test."""

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack

import numpy as np

from pdgate.engine.neuron.communicator import RING_BYTES, Receiver, Sender
from pdgate.engine.neuron.ground import Ground
from pdgate.engine.neuron.posts import CompletionToken, PostGate, PostPieces
from pdgate.transfer import parts, registry
from pdgate.transfer.base import TransferError
from tests.support import waiting

MEMORY_BYTES = 4096
SECONDS = waiting.PATIENCE_SECONDS


def pieces(*offsets_and_lengths: tuple[int, int]) -> PostPieces:
    rows = np.array(offsets_and_lengths, np.int64).reshape(-1, 2)
    return PostPieces(rows[:, 0], rows[:, 1])


class Ends:
    """`sender` has bytes that differ everywhere; `receiver` has zeros."""

    def __init__(self, backend: str, stack: ExitStack, seconds: float = SECONDS) -> None:
        self.woken = threading.Event()
        backends = [registry.load(backend) for _ in range(2)]
        for one in backends:
            stack.callback(one.close)
        self.p_backend, self.d_backend = backends
        self.source = self.p_backend.allocate(MEMORY_BYTES)
        self.source.memory[:] = np.random.default_rng(3).bytes(MEMORY_BYTES)
        ring = self.p_backend.allocate(RING_BYTES)
        self.target = self.d_backend.allocate(MEMORY_BYTES)
        staging = self.d_backend.allocate(RING_BYTES)
        self.sender = Sender(
            Ground(self.p_backend, self.woken.set, seconds),
            self.source,
            self.target.descriptor,
            immediate=70,
            ring=ring,
            ring_offset=0,
            ring_immediate=5,
        )
        self.receiver = Receiver(
            Ground(self.d_backend, self.woken.set, seconds),
            self.target,
            immediate=70,
            awaited=parts.Pieces(),
            staging=staging,
            ring=ring.descriptor,
            ring_offset=0,
            ring_immediate=5,
            landing_seconds=seconds,
        )

    def send(self, *what: tuple[int, int], gate: PostGate | None = None) -> CompletionToken:
        token = CompletionToken()
        self.sender.post(pieces(*what), token, gate)
        return token

    def receive(self, *what: tuple[int, int]) -> CompletionToken:
        token = CompletionToken()
        self.receiver.post(pieces(*what), token)
        return token

    def pump(self) -> None:
        self.woken.clear()
        self.sender.pump()
        self.receiver.pump()

    def until(self, true: Callable[[], bool]) -> None:
        """Pumps when something has happened, until it is true."""
        limit = time.monotonic() + SECONDS
        while True:
            self.pump()
            if true():
                return
            assert self.woken.wait(limit - time.monotonic()), "nothing happens any more"

    def done(self, tokens: Sequence[CompletionToken]) -> list[TransferError | None]:
        self.until(lambda: all(token.done for token in tokens))
        return [token.error for token in tokens]

    def same(self, source: tuple[int, int], target: tuple[int, int]) -> bool:
        return bytes(self.source.memory[source[0] : sum(source)]) == bytes(
            self.target.memory[target[0] : sum(target)]
        )
