"""D's pairings: one for each P that a request has named, begun when the first one does.

A P that is gone leaves with all that hung on it; the next request that names it begins anew,
as with a P that was started again. The one P of a static pair is known beforehand: it is met, and
what a transfer with it needs is set up, when the engine starts, and again whenever it is gone.
"""

import itertools
import secrets
import threading
from typing import Final

from pdgate.engine.neuron.load import NeuronLoad
from pdgate.engine.neuron.recv_buffer import RecvBuffer
from pdgate.engine.neuron.setup import Setup
from pdgate.engine.neuron.transfer_engine import IMMEDIATES

Address = tuple[str, int]

MEET_AGAIN_SECONDS: Final = 2.0
"""Before the P of a static pair is dialled anew; a connection that is refused takes no time."""


class Peers:
    """
    Args:
        identity: Ours on the signal plane: "ip:api port".
        static: The signal plane of the one P that is met from the start; None if there is none.
    """

    def __init__(self, setup: Setup, identity: str, static: Address | None = None) -> None:
        self._setup = setup
        self._identity = identity
        self._lock = threading.Lock()
        self._pairings: dict[Address, RecvBuffer] = {}
        # Of every pairing its own: what a broken one left behind must not count for the next.
        self._immediates = itertools.count(
            secrets.randbits(32) // IMMEDIATES * IMMEDIATES, IMMEDIATES
        )
        self._closing = threading.Event()
        self._lost = threading.Event()
        self._static = static
        self._meeting = None
        if static is not None:
            self._meeting = threading.Thread(
                target=self._meet, args=(static,), name="neuron-meet", daemon=True
            )
            self._meeting.start()

    def load(self, peer: Address, load: NeuronLoad) -> None:
        """Any thread. `core.loaded` is called for it, whatever happens."""
        with self._lock:
            pairing = self._pairings.get(peer)
            if pairing is None or not pairing.load(load):
                pairing = self._pairings[peer] = self._new(peer)
                # Before it starts: it may end at once.
                pairing.load(load)
                pairing.start()

    def cancel(self, request_id: str) -> None:
        """Cancel a request at all pairings, of which one knows it."""
        with self._lock:
            pairings = list(self._pairings.values())
        for pairing in pairings:
            pairing.cancel(request_id)

    def close(self) -> None:
        self._closing.set()
        self._lost.set()
        if self._meeting is not None:
            self._meeting.join()
        with self._lock:
            pairings = list(self._pairings.values())
        for pairing in pairings:
            pairing.close()

    def _new(self, peer: Address) -> RecvBuffer:
        immediate = next(self._immediates) % 2**32
        return RecvBuffer(self._setup, self._identity, peer, immediate, self._forget)

    def _forget(self, pairing: RecvBuffer) -> None:
        with self._lock:
            if self._pairings.get(pairing.peer) is pairing:
                del self._pairings[pairing.peer]
        if pairing.peer == self._static:
            self._lost.set()

    def _meet(self, peer: Address) -> None:
        """Until we close: a pairing with the P of a static pair, whether or not a request names it."""
        while not self._closing.is_set():
            self._lost.clear()
            with self._lock:
                if peer not in self._pairings:
                    self._pairings[peer] = self._new(peer)
                    self._pairings[peer].start()
            self._lost.wait()
            self._closing.wait(MEET_AGAIN_SECONDS)
