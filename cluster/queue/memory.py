"""A queue inside one process: for tests, and for an engine that is both prefill and decode."""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from pdgate.cluster.queue.contract import Buried, Delivery, Depth, Item, Queue, QueueFull
from pdgate.cluster.queue.settings import QueueSettings

MAX_REMEMBERED = 1024


@dataclass(slots=True)
class _QueueEntry:
    """
    Attributes:
        since: When it was put, or put back.
        worker: Who has it; empty while it waits.
        held: When its worker said so last.
    """

    item: Item
    since: float
    tries: int = 0
    worker: str = ""
    held: float = 0.0


class MemoryQueue(Queue):
    def __init__(self, settings: QueueSettings, now: Callable[[], float] = time.monotonic) -> None:
        self._settings = settings
        self._now = now
        self._changed = threading.Condition()
        self._entries: OrderedDict[str, _QueueEntry] = OrderedDict()
        self._buried: OrderedDict[str, None] = OrderedDict()
        self._seen: float | None = None

    def put(self, item: Item) -> None:
        with self._changed:
            if item.id in self._buried:
                raise Buried(f"delivered {self._settings.tries} times in vain")
            if item.id in self._entries:
                return
            if len(self._entries) >= self._settings.capacity:
                raise QueueFull(f"{len(self._entries)} items are not done yet")
            self._entries[item.id] = _QueueEntry(item, self._now())
            self._changed.notify()

    def take(self, worker: str, wait_seconds: float) -> Delivery | None:
        until = self._now() + wait_seconds
        with self._changed:
            while (delivery := self._next(worker)) is None:
                self._seen = self._now()
                left = until - self._now()
                if left <= 0:
                    return None
                self._changed.wait(min(left, self._settings.hold_seconds))
            return delivery

    def hold(self, delivery: Delivery) -> bool:
        with self._changed:
            entry = self._entries.get(delivery.item.id)
            self._seen = self._now()
            ours = entry is not None and _receipt(entry) == delivery.receipt
            if entry is not None and ours:
                entry.held = self._now()
            return ours

    def free(self, item_id: str) -> None:
        with self._changed:
            entry = self._entries.get(item_id)
            if entry is not None and entry.worker:
                entry.worker = ""
                entry.since = self._now()
                self._entries.move_to_end(item_id)
                self._changed.notify()

    def done(self, item_id: str) -> None:
        with self._changed:
            self._entries.pop(item_id, None)

    def depth(self) -> Depth:
        with self._changed:
            entries = self._entries.values()
            taken = sum(1 for entry in entries if entry.worker)
            oldest = max((self._now() - entry.since for entry in entries), default=0.0)
            idle = None if self._seen is None else self._now() - self._seen
            return Depth(len(entries) - taken, taken, len(self._buried), oldest, idle)

    def close(self) -> None:
        """Others in this process may still use it."""

    def _next(self, worker: str) -> Delivery | None:
        for entry in list(self._entries.values()):
            silent = self._now() - entry.held >= self._settings.redeliver_seconds
            if entry.worker and not silent:
                continue
            if entry.tries >= self._settings.tries:
                self._bury(entry.item.id)
                continue
            entry.tries += 1
            entry.worker, entry.held = worker, self._now()
            self._seen = entry.held
            return Delivery(entry.item, entry.tries, worker, _receipt(entry))
        return None

    def _bury(self, item_id: str) -> None:
        del self._entries[item_id]
        self._buried[item_id] = None
        if len(self._buried) > MAX_REMEMBERED:
            self._buried.popitem(last=False)


def _receipt(entry: _QueueEntry) -> str:
    return f"{entry.worker} {entry.tries}"


_shared: dict[tuple[str, str], MemoryQueue] = {}
_opening = threading.Lock()


def shared(settings: QueueSettings, model: str) -> MemoryQueue:
    """One for each URL and model, for as long as the process lives."""
    with _opening:
        return _shared.setdefault((settings.url, model), MemoryQueue(settings))
