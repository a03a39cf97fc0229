"""Two names for a prefill that D asked us for; every other request has one.

ours     kvt-<hex>                the hand-over's, known before the request exists
vLLM's   cmpl-kvt-<hex>-0-<hex>   once it has come in by our own API
"""

import threading


class Names:
    """Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ours: dict[str, str] = {}
        self._vllms: dict[str, str] = {}

    def join(self, ours: str, vllms: str) -> bool:
        """False if another request has it already."""
        with self._lock:
            if ours in self._vllms:
                return False
            self._vllms[ours] = vllms
            self._ours[vllms] = ours
            return True

    def ours(self, vllms: str) -> str:
        with self._lock:
            return self._ours.get(vllms, vllms)

    def vllms(self, ours: str) -> str:
        with self._lock:
            return self._vllms.get(ours, ours)

    def forget(self, vllms: str) -> None:
        """vLLM has its blocks back."""
        with self._lock:
            ours = self._ours.pop(vllms, None)
            if ours is not None:
                del self._vllms[ours]
