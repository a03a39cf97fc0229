"""Offers: finished prompts that are kept for a reader, by the key that both sides know.

    expected --put--> offered --wait--> being read --release--> gone (its pages are free)
        |                |                  '--drop / abandon--> ending --release, left--> gone
        '----------------'--drop / abandon--> gone (no peer may read it)

A reader may come before the offer and waits for it; if it leaves before the request is known, its key
is remembered, and who would compute the request hears that it is for nothing. While it reads, the pages stay,
and no other is let in; but a decode engine of several workers reads a share by each (workers.py), and the
pages go with the last of them. All methods are thread-safe; what they decide holds at once, so
pages that were dropped are never confirmed afterwards.
"""

import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from pdgate.transfer.device.base import DeviceEvent
from pdgate.transfer.messenger.context import Context
from pdgate.transfer.messenger.counters import MessengerCounters
from pdgate.transfer.messenger.errors import HandOverError, Why
from pdgate.transfer.messenger.workers import WHOLE, KeyShare

MAX_KEY_CHARACTERS = 1024
MAX_REMEMBERED = 4096
GIVEN_UP = "its reader gave up"
LOOK_SECONDS = 1.0
"""How often it is asked whether a reader that waits is still there."""


@dataclass(frozen=True, slots=True)
class Offer:
    """
    Attributes:
        id: Tells this offer from an earlier one under the same key.
        tokens: How many leading tokens of the prompt the pages hold.
        after: When the device has come so far; None: it has.
    """

    id: str
    block_ids: Sequence[int]
    tokens: int
    context: Context
    after: DeviceEvent | None = None


@dataclass(frozen=True, slots=True)
class Dropped:
    """
    Attributes:
        offered: It was offered, and had not been released.
        in_use: The pages are still read from; they may go when `left` or `release` says so.
    """

    offered: bool = False
    in_use: bool = False


@dataclass(frozen=True, slots=True)
class ReleasedOffer:
    """
    Attributes:
        held: The pages were still this offer's until now, so what was read is good.
        free: The request whose pages may go: this was the last share of it.
    """

    held: bool = False
    free: str | None = None


@dataclass(slots=True)
class _OfferEntry:
    """
    Attributes:
        readers: Who reads which share, by their connections.
        revoke: How to take from each of them what it was granted, by their connections.
        taken: Ranks of decode that have read theirs.
        pushers: Who hand it over without being asked to read; they say themselves when they
            are done.
        ending: Why no other may read it.
        abandoned: Somebody gave it up while it was pushed: no other may push, and it goes with the last of `pushers`.
        only: Names of the processes that may have it; empty for any that knows the key.
    """

    request_id: str
    only: Sequence[str] = ()
    offer: Offer | None = None
    readers: dict[object, KeyShare] = field(default_factory=dict)
    revoke: dict[object, Callable[[], None]] = field(default_factory=dict)
    taken: frozenset[int] = frozenset()
    pushers: set[object] = field(default_factory=set)
    ending: str | None = None
    abandoned: bool = False


class Offers:
    def __init__(self, counters: MessengerCounters | None = None) -> None:
        self._counters = counters or MessengerCounters()
        self._lock = threading.Lock()
        self._entries: dict[str, _OfferEntry] = {}
        self._keys: dict[str, str] = {}
        self._dropped: OrderedDict[str, str] = OrderedDict()
        self._left: OrderedDict[str, None] = OrderedDict()
        """Keys that a peer asked for, and gave up before there was a request."""
        self._waiting: dict[str, list[threading.Event]] = {}
        self._closed = False

    def expect(self, key: str, request_id: str, only: Sequence[str] = ()) -> bool:
        """This request is going to be offered, to the processes of these names if they are said.

        False if the reader has asked for it and left. Raises ValueError if the key is taken, or too long for any peer.
        """
        if len(key) > MAX_KEY_CHARACTERS:
            raise ValueError(too_long(key))
        with self._lock:
            if key in self._entries:
                raise ValueError(f"another live request has the key {key!r}")
            self._entries[key] = _OfferEntry(request_id, only)
            self._keys[request_id] = key
            self._dropped.pop(key, None)
            left = key in self._left
            self._left.pop(key, None)
            # Who asks for a prefill itself is there, whatever became of an attempt before.
            return not left or bool(only)

    def put(
        self,
        request_id: str,
        block_ids: Sequence[int],
        tokens: int,
        first_token: int | None,
        context: bytes = b"",
        after: DeviceEvent | None = None,
    ) -> bool:
        """False if it is not expected any more: then its pages are of no use."""
        with self._lock:
            key = self._keys.get(request_id)
            if key is None:
                return False
            beside = Context(first_token, context)
            offer = Offer(secrets.token_hex(16), tuple(block_ids), tokens, beside, after)
            self._entries[key].offer = offer
            self._wake(key)
            return True

    def claim(self, key: str, pusher: object, peer: str = "") -> str | None:
        """The live request with this key is `pusher`'s to hand over; None if there is none yet.
        `peer`: the name of who gets it. What share of it, and whether another has that, is for
        the pushers to know.

        Raises HandOverError: taken, expired or closing.
        """
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                self._refuse(key)
                self._left.pop(key, None)
                return None
            _check(key, entry, peer)
            if entry.abandoned:
                raise HandOverError(Why.EXPIRED, GIVEN_UP)
            if entry.readers:
                raise HandOverError(Why.TAKEN, f"somebody else gets {key!r}")
            entry.pushers.add(pusher)
            return entry.request_id

    def unclaim(self, key: str, pusher: object) -> str | None:
        """Nothing of its share moves any more; others may still be at theirs, or not come. The request
        if none is and none will: it was abandoned meanwhile.
        """
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                return None
            entry.pushers.discard(pusher)
            return entry.request_id if entry.abandoned and not entry.pushers else None

    def wait(
        self,
        key: str,
        wait_seconds: float,
        reader: object,
        peer: str = "",
        gone: Callable[[], bool] = lambda: False,
        share: KeyShare = WHOLE,
    ) -> Offer:
        """The pages are read by `reader` from now on, until `release` or `left`.
        `peer`: the name of who reads; `gone`: whether it has hung up. The pages go when all of
        decode's ranks that take something here have.

        Raises HandOverError: unknown, taken, expired, closing, or broken if it has.
        """
        until = time.monotonic() + wait_seconds
        while True:
            with self._lock:
                self._left.pop(key, None)
                entry = self._entries.get(key)
                if entry is not None:
                    _check(key, entry, peer)
                if entry is not None and entry.offer is not None:
                    return self._lend(key, entry, entry.offer, reader, share)
                self._refuse(key)
                changed = threading.Event()
                self._waiting.setdefault(key, []).append(changed)
            changed.wait(max(0.0, min(LOOK_SECONDS, until - time.monotonic())))
            if not changed.is_set():
                self._forget(key, changed)
                if gone():
                    raise HandOverError(Why.BROKEN, "the decode engine hung up while it waited")
                if time.monotonic() >= until:
                    raise HandOverError(
                        Why.UNKNOWN, f"nothing under {key!r} within {wait_seconds:g} s"
                    )

    def granted(self, key: str, offer_id: str, reader: object, revoke: Callable[[], None]) -> bool:
        """What `wait` gave to `reader` can be reached by its peer from now on, until `revoke`, for which
        `forget` does not wait to be asked. False if it was forgotten meanwhile.
        """
        with self._lock:
            entry = self._entries.get(key)
            if entry is None or entry.offer is None or entry.offer.id != offer_id:
                return False
            entry.revoke[reader] = revoke
            return True

    def release(self, key: str, offer_id: str, reader: object) -> ReleasedOffer:
        """This reader has its share."""
        with self._lock:
            entry = self._entries.get(key)
            if entry is None or entry.offer is None or entry.offer.id != offer_id:
                return ReleasedOffer()
            share = entry.readers.pop(reader, None)
            entry.revoke.pop(reader, None)
            if share is None:
                return ReleasedOffer()
            entry.taken |= share.ranks
            if not entry.taken >= share.of and (entry.ending is None or entry.readers):
                return ReleasedOffer(held=True)
            why, last = entry.ending, entry.taken >= share.of
            self._lingers(entry, None)
            self._remove(key)
            if why is not None and not last:
                self._remember(key, why)
            return ReleasedOffer(held=True, free=entry.request_id)

    def abandon(
        self, key: str, peer: str = "", pusher: object | None = None
    ) -> tuple[str, bool] | None:
        """The request that will not be read, and whether it was offered already. What is being read or
        pushed goes when that is over. `pusher`: who had claimed it, and writes nothing of it.
        """
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                self._left[key] = None
                while len(self._left) > MAX_REMEMBERED:
                    self._left.popitem(last=False)
                return None
            if entry.only and peer not in entry.only:
                return None
            if entry.readers:
                self._lingers(entry, entry.ending or GIVEN_UP)
                return None
            if entry.pushers - {pusher}:
                entry.abandoned = True
                entry.pushers.discard(pusher)
                return None
            self._remove(key)
            self._remember(key, GIVEN_UP)
            return entry.request_id, entry.offer is not None

    def left(self, reader: object) -> list[str]:
        """The reader hung up. The requests whose pages may go now."""
        free = []
        with self._lock:
            for key, entry in list(self._entries.items()):
                entry.revoke.pop(reader, None)
                if entry.readers.pop(reader, None) is None:
                    continue
                if (why := entry.ending) is not None and not entry.readers:
                    self._lingers(entry, None)
                    self._remove(key)
                    self._remember(key, why)
                    free.append(entry.request_id)
        return free

    def drop(self, request_id: str, why: str) -> Dropped:
        """Its pages shall go."""
        with self._lock:
            key = self._keys.get(request_id)
            if key is None:
                return Dropped()
            entry = self._entries[key]
            if entry.readers:
                self._lingers(entry, why)
                return Dropped(offered=True, in_use=True)
            self._remove(key)
            self._remember(key, why)
            return Dropped(offered=entry.offer is not None)

    def forget(self, request_id: str) -> None:
        """It was handed over, or may not be read now: for a reader at it, it will not be held.

        Returns when none can reach the pages any more, where the backend can know.
        """
        revoke: list[Callable[[], None]] = []
        with self._lock:
            key = self._keys.get(request_id)
            if key is not None:
                entry = self._entries[key]
                revoke += entry.revoke.values()
                self._lingers(entry, None)
                self._remove(key)
        # Without the lock: what is under way may take its time to break off.
        for one in revoke:
            one()

    def close(self) -> None:
        """Waiting readers are refused."""
        with self._lock:
            self._closed = True
            for key in list(self._waiting):
                self._wake(key)

    def _refuse(self, key: str) -> None:
        if key in self._dropped:
            raise HandOverError(Why.EXPIRED, self._dropped[key])
        if self._closed:
            raise HandOverError(Why.CLOSING, "the prefill engine is shutting down")

    @staticmethod
    def _lend(key: str, entry: _OfferEntry, offer: Offer, reader: object, share: KeyShare) -> Offer:
        if entry.ending is not None:
            raise HandOverError(Why.EXPIRED, entry.ending)
        others = [held for other, held in entry.readers.items() if other is not reader]
        given = entry.taken.union(*(other.ranks for other in others))
        if entry.pushers or share.ranks & given or any(not other.ranks for other in others):
            raise HandOverError(Why.TAKEN, f"somebody else gets {key!r}")
        entry.readers[reader] = share
        return offer

    def _lingers(self, entry: _OfferEntry, why: str | None) -> None:
        """While its reader is still there its pages are, which are not wanted any more."""
        pages = 0 if entry.offer is None else len(entry.offer.block_ids)
        change = (why is not None) - (entry.ending is not None)
        entry.ending = why
        self._counters.add(lingering=change * pages)

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


def too_long(key: str) -> str:
    return f"a key of {len(key)} characters, {MAX_KEY_CHARACTERS} at most"


def _check(key: str, entry: _OfferEntry, peer: str) -> None:
    """Raises HandOverError."""
    if entry.only and peer not in entry.only:
        raise HandOverError(Why.TAKEN, f"{key!r} is for another engine")
