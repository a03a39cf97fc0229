"""D's pairings: one for each P that a request has named, begun when the first one does.

A P that is gone leaves with all that hung on it; the next request that names it begins anew,
as with a P that was started again.
"""

import itertools
import secrets
import threading

from pdgate.engine.neuron.load import Load
from pdgate.engine.neuron.recv_buffer import RecvBuffer
from pdgate.engine.neuron.setup import Setup
from pdgate.engine.neuron.transfer_engine import IMMEDIATES

Address = tuple[str, int]


class Peers:
    """
    Args:
        identity: Ours on the signal plane: "ip:api port".
    """

    def __init__(self, setup: Setup, identity: str) -> None:
        self._setup = setup
        self._identity = identity
        self._lock = threading.Lock()
        self._pairings: dict[Address, RecvBuffer] = {}
        # Of every pairing its own: what a broken one left behind must not count for the next.
        self._immediates = itertools.count(
            secrets.randbits(32) // IMMEDIATES * IMMEDIATES, IMMEDIATES
        )

    def load(self, peer: Address, load: Load) -> None:
        """Any thread. `core.loaded` is called for it, whatever happens."""
        with self._lock:
            pairing = self._pairings.get(peer)
            if pairing is None or not pairing.load(load):
                pairing = self._pairings[peer] = self._new(peer)
                # Before it starts: it may end at once.
                pairing.load(load)
                pairing.start()

    def cancel(self, request_id: str) -> None:
        """Only one of them knows it, and the others do not mind."""
        with self._lock:
            pairings = list(self._pairings.values())
        for pairing in pairings:
            pairing.cancel(request_id)

    def close(self) -> None:
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
