"""A queue on Redis 7: a stream, a consumer group, and what redis_scripts.py keeps beside it.

    take    XAUTOCLAIM (its worker fell silent), else XREADGROUP, which blocks
    hold    XCLAIM by the one who has it: the entry counts as just delivered

A Redis that comes back empty is a new queue: stream and group are made when they are missed,
and those who still wait for their items put them again.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from pdgate.cluster.queue import redis_scripts as scripts
from pdgate.cluster.queue.contract import (
    Buried,
    Delivery,
    Depth,
    Item,
    Queue,
    QueueAway,
    QueueError,
    QueueFull,
)
from pdgate.cluster.queue.settings import QueueSettings

ANSWER_SECONDS = 5.0
MAX_BLOCK_SECONDS = 1.0
"""Of one read; after it, items of silent workers are looked for again."""

MIN_BLOCK_SECONDS = 0.001
"""Redis takes 0 for ever."""

MOST_ITEM_BYTES = 16 << 10
"""Of an item that is read; ours have 150, and as much as the id of their request."""

SEEN_SECONDS = 1.0
"""Between two times that a worker which takes says so."""

_SCRIPTS = ("PUT", "SEEN", "HOLD", "FREE", "DONE", "BURY", "DEPTH")
_AWAY = (redis.ConnectionError, redis.TimeoutError, redis.exceptions.ReadOnlyError)


_Entry = tuple[str, dict[str, str]]
"""Its id, which is the time it was put, and its fields."""


class RedisQueue(Queue):
    def __init__(self, settings: QueueSettings, model: str) -> None:
        """Connects with the first call."""
        prefix = f"{{pdgate:prefill:{model}}}"
        self._settings = settings
        self._items, self._ids, self._dead, self._seen = (
            f"{prefix}:{part}" for part in ("items", "ids", "dead", "seen")
        )
        self._say_at = 0.0
        # Callers know better whether to try again.
        self._redis = redis.Redis.from_url(
            settings.url,
            decode_responses=True,
            # What is no UTF-8 is no item of ours, and must not keep a worker from the next.
            encoding_errors="replace",
            socket_timeout=ANSWER_SECONDS,
            socket_connect_timeout=ANSWER_SECONDS,
            retry=Retry(NoBackoff(), 0),
        )
        made = {name: self._redis.register_script(getattr(scripts, name)) for name in _SCRIPTS}
        self._script: dict[str, Any] = made

    def put(self, item: Item) -> None:
        keys = [self._items, self._ids, self._grave(item.id)]
        body = msgspec.json.encode(item).decode()
        match self._run("PUT", keys, scripts.GROUP, item.id, body, self._settings.capacity):
            case "full":
                raise QueueFull(f"{self._settings.capacity} items are not done yet")
            case "buried":
                raise Buried(f"delivered {self._settings.tries} times in vain")

    def take(self, worker: str, wait_seconds: float) -> Delivery | None:
        until = time.monotonic() + wait_seconds
        while True:
            block = min(until - time.monotonic(), MAX_BLOCK_SECONDS, self._settings.hold_seconds)
            self._be_seen()
            found = self._orphan(worker) or self._fresh(worker, max(MIN_BLOCK_SECONDS, block))
            if found is not None and (delivery := self._deliver(worker, *found)) is not None:
                return delivery
            if time.monotonic() >= until:
                return None

    def hold(self, delivery: Delivery) -> bool:
        keys = [self._items, self._seen]
        return bool(self._run("HOLD", keys, scripts.GROUP, delivery.receipt, delivery.worker))

    def free(self, item_id: str) -> None:
        self._run("FREE", [self._items, self._ids], scripts.GROUP, item_id)

    def done(self, item_id: str) -> None:
        self._run("DONE", [self._items, self._ids], scripts.GROUP, item_id)

    def depth(self) -> Depth:
        keys = [self._items, self._ids, self._dead, self._seen]
        waiting, taken, buried, oldest, idle = self._run("DEPTH", keys, scripts.GROUP)
        unseen = max(0.0, float(idle)) if idle else None
        return Depth(waiting, taken, buried, max(0.0, float(oldest)), unseen)

    def close(self) -> None:
        self._redis.close()

    def _be_seen(self) -> None:
        now = time.monotonic()
        if now >= self._say_at:
            self._run("SEEN", [self._seen])
            self._say_at = now + SEEN_SECONDS

    def _orphan(self, worker: str) -> _Entry | None:
        """An entry whose worker fell silent: ours now."""
        idle_ms = int(self._settings.redeliver_seconds * 1000)
        answer = self._ask(
            lambda: self._redis.xautoclaim(
                self._items, scripts.GROUP, worker, min_idle_time=idle_ms, count=1
            )
        )
        return answer[1][0] if answer and answer[1] else None

    def _fresh(self, worker: str, seconds: float) -> _Entry | None:
        answer = self._ask(
            lambda: self._redis.xreadgroup(
                scripts.GROUP, worker, {self._items: ">"}, count=1, block=int(seconds * 1000)
            )
        )
        return answer[0][1][0] if answer else None

    def _deliver(self, worker: str, entry: str, fields: dict[str, str]) -> Delivery | None:
        """None if the entry is of no use any more, and gone."""
        pending = self._ask(
            lambda: self._redis.xpending_range(self._items, scripts.GROUP, entry, entry, 1)
        )
        if not pending:
            return None
        body = fields.get("item", "")
        try:
            if len(body) > MOST_ITEM_BYTES:
                raise ValueError("an item that long is none of ours")
            item = msgspec.json.decode(body, type=Item)
            tries = int(fields["tries"]) + int(pending[0]["times_delivered"])
        # Deep nesting exhausts the parser's stack.
        except (msgspec.DecodeError, KeyError, ValueError, RecursionError):
            self._bury(entry, "", body[:MOST_ITEM_BYTES], 0)
            return None
        if tries > self._settings.tries:
            self._bury(entry, item.id, body, tries - 1)
            return None
        return Delivery(item, tries, worker, entry)

    def _bury(self, entry: str, item_id: str, body: str, tries: int) -> None:
        keys = [self._items, self._ids, self._dead, self._grave(item_id)]
        kept, seconds = scripts.DEAD_KEPT, scripts.DEAD_SECONDS
        self._run("BURY", keys, scripts.GROUP, entry, item_id, body, tries, kept, seconds)

    def _grave(self, item_id: str) -> str:
        return f"{self._dead}:{item_id}"

    def _run(self, name: str, keys: list[str], *words: object) -> Any:
        with _translated():
            return self._script[name](keys=keys, args=words)

    def _ask(self, command: Callable[[], Any]) -> Any:
        """Nothing from a queue that was made only now."""
        with _translated():
            try:
                return command()
            except redis.ResponseError as error:
                if not str(error).startswith("NOGROUP"):
                    raise
                self._make_group()
                return None

    def _make_group(self) -> None:
        try:
            self._redis.xgroup_create(self._items, scripts.GROUP, "0", mkstream=True)
        except redis.ResponseError as error:
            # Another worker was first.
            if not str(error).startswith("BUSYGROUP"):
                raise


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except _AWAY as error:
        raise QueueAway(f"Redis cannot be reached: {error}") from None
    except redis.RedisError as error:
        raise QueueError(f"Redis refused: {error}") from None
