"""Which finished prompts are kept for a reader, by the key that both sides were told.

    expected --put--> offered --release--> gone (read; its pages are free)
        '---------------'----drop / abandon--> gone (nobody may read it)

A reader may come before the offer and waits for it. All methods are thread-safe; what
they decide holds at once, so pages that were dropped are never confirmed afterwards.
"""

import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from pdgate.engine.hand_over.errors import HandOverError, Why

MAX_REMEMBERED = 4096


@dataclass(frozen=True, slots=True)
class Offer:
    """
    Attributes:
        id: Tells this offer from an earlier one under the same key.
        tokens: How many leading tokens of the prompt the pages hold.
    """

    id: str
    block_ids: Sequence[int]
    tokens: int
    first_token: int | None


@dataclass(slots=True)
class _Entry:
    request_id: str
    offer: Offer | None = None


class Offers:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._entries: dict[str, _Entry] = {}
        self._keys: dict[str, str] = {}
        self._dropped: OrderedDict[str, str] = OrderedDict()
        self._waiting: dict[str, list[threading.Event]] = {}
        self._closed = False

    def expect(self, key: str, request_id: str) -> None:
        """This request is going to be offered. Raises ValueError if the key is taken."""
        with self._lock:
            if key in self._entries:
                raise ValueError(f"another live request has the key {key!r}")
            self._entries[key] = _Entry(request_id)
            self._keys[request_id] = key
            self._dropped.pop(key, None)

    def put(
        self, request_id: str, block_ids: Sequence[int], tokens: int, first_token: int | None
    ) -> bool:
        """False if nobody expects it any more: then its pages are of no use."""
        with self._lock:
            key = self._keys.get(request_id)
            if key is None:
                return False
            offer = Offer(secrets.token_hex(8), tuple(block_ids), tokens, first_token)
            self._entries[key].offer = offer
            self._wake(key)
            return True

    def wait(self, key: str, wait_seconds: float) -> Offer:
        """Raises HandOverError: unknown, expired or closing."""
        until = time.monotonic() + wait_seconds
        while True:
            with self._lock:
                entry = self._entries.get(key)
                if entry is not None and entry.offer is not None:
                    return entry.offer
                if key in self._dropped:
                    raise HandOverError(Why.EXPIRED, self._dropped[key])
                if self._closed:
                    raise HandOverError(Why.CLOSING, "the prefill engine is shutting down")
                changed = threading.Event()
                self._waiting.setdefault(key, []).append(changed)
            changed.wait(max(0.0, until - time.monotonic()))
            if not changed.is_set():
                self._forget(key, changed)
                if time.monotonic() >= until:
                    raise HandOverError(
                        Why.UNKNOWN, f"nothing under {key!r} within {wait_seconds:g} s"
                    )

    def release(self, key: str, offer_id: str) -> str | None:
        """The request whose pages may go; None if this offer is not held any more."""
        with self._lock:
            entry = self._entries.get(key)
            if entry is None or entry.offer is None or entry.offer.id != offer_id:
                return None
            self._remove(key)
            return entry.request_id

    def abandon(self, key: str) -> tuple[str, bool] | None:
        """The request that nobody will read, and whether it was offered already."""
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                return None
            self._remove(key)
            self._remember(key, "its reader gave up")
            return entry.request_id, entry.offer is not None

    def drop(self, request_id: str, why: str) -> bool:
        """Its pages are gone. True if they had been offered and not been read."""
        with self._lock:
            key = self._keys.get(request_id)
            if key is None:
                return False
            offered = self._entries[key].offer is not None
            self._remove(key)
            self._remember(key, why)
            return offered

    def close(self) -> None:
        """Whoever waits is refused."""
        with self._lock:
            self._closed = True
            for key in list(self._waiting):
                self._wake(key)

    def _remove(self, key: str) -> None:
        del self._keys[self._entries.pop(key).request_id]

    def _remember(self, key: str, why: str) -> None:
        self._dropped[key] = why
        while len(self._dropped) > MAX_REMEMBERED:
            self._dropped.popitem(last=False)
        self._wake(key)

    def _wake(self, key: str) -> None:
        for changed in self._waiting.pop(key, []):
            changed.set()

    def _forget(self, key: str, changed: threading.Event) -> None:
        with self._lock:
            left = [other for other in self._waiting.get(key, []) if other is not changed]
            if left:
                self._waiting[key] = left
            else:
                self._waiting.pop(key, None)
