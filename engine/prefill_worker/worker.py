"""The loop of a prefill worker: take an item, claim it for our engine, hold it until it is over.

What becomes of the item hangs on the decode engine's last word (wire.py). If there is none,
because that engine cannot be reached, the item stays ours by name and is not held: after a
while the queue gives it to another worker, which may reach it, or gives it up.
"""

import http.client
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from urllib.parse import urlsplit

from pdgate.cluster.queue.contract import Delivery, Queue, QueueError
from pdgate.engine.prefill_worker.claim import Claiming, Unreachable
from pdgate.engine.prefill_worker.wire import Claim, ClaimWord
from pdgate.transfer.runtime.fleet import Identity

TAKE_SECONDS = 0.25
"""How long a stop may take that finds us waiting for an item."""
RETRY_SECONDS = 0.5
HEALTH_SECONDS = 2.0

log = logging.getLogger(__name__)


class EngineHealth:
    """Whether the engine beside a worker can compute: its /health, asked at each call.

    Any 200 counts, as with vLLM. What a worker takes for a dead engine would only fail.
    """

    def __init__(self, url: str) -> None:
        """Raises ValueError."""
        parts = urlsplit(url)
        if parts.scheme != "http" or parts.hostname is None:
            raise ValueError(f"the engine must be http://host:port, not {url!r}")
        self._host, self._port = parts.hostname, parts.port or 80

    def __call__(self) -> bool:
        connection = http.client.HTTPConnection(self._host, self._port, timeout=HEALTH_SECONDS)
        try:
            connection.request("GET", "/health")
            return connection.getresponse().status == HTTPStatus.OK
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()


@dataclass(frozen=True, slots=True)
class Serving:
    """
    Attributes:
        name: Of the worker, different for every one that ever was.
        host, port: Of the prefill engine's KV side.
        hold_seconds: Between two signs of life while an item is being worked on.
    """

    name: str
    host: str
    port: int
    hold_seconds: float


def always() -> bool:
    """Answer for an engine in this process, which is always there."""
    return True


class PrefillWorker:
    """Works from `start` on. The queue is the caller's to close, after us."""

    def __init__(
        self,
        queue: Queue,
        serving: Serving,
        identity: Identity,
        ready: Callable[[], bool] = always,
    ) -> None:
        """`ready` is asked before each item; it may block for a moment."""
        self._identity = identity
        self._queue = queue
        self._serving = serving
        self._ready = ready
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._claiming: Claiming | None = None
        self._away = False
        self._thread = threading.Thread(target=self._run, name="pdgate-prefill-worker", daemon=True)

    def start(self) -> None:
        one = self._serving
        log.info("prefill worker %s takes prompts for %s:%d", one.name, one.host, one.port)
        self._thread.start()

    def stop(self) -> None:
        """Takes nothing more; what it has taken goes on."""
        self._stopping.set()

    def wait(self, seconds: float | None = None) -> bool:
        """Whether it has come to its end after `stop`."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def cut(self) -> None:
        """Stops, and lets go of what it has taken: others may get it."""
        self.stop()
        with self._lock:
            if self._claiming is not None:
                self._claiming.cut()

    def _run(self) -> None:
        while not self._stopping.is_set():
            if not self._ready():
                self._stopping.wait(RETRY_SECONDS)
                continue
            try:
                delivery = self._queue.take(self._serving.name, TAKE_SECONDS)
                self._reached()
                if delivery is not None:
                    self._work(delivery)
            except QueueError as error:
                self._missed(error)
                self._stopping.wait(RETRY_SECONDS)
            # The last stop of a thread: with it this engine would be lost to all others' prompts.
            except Exception:
                log.exception("prefill worker %s goes on with the next prompt", self._serving.name)
                self._stopping.wait(RETRY_SECONDS)

    def _work(self, delivery: Delivery) -> None:
        """Raises QueueError: then the item comes again, to a worker that hears that it is over."""
        item, serving = delivery.item, self._serving
        began = time.monotonic()
        try:
            with Claiming(item, self._identity) as claiming:
                self._arm(claiming)
                if time.monotonic() - began > serving.hold_seconds:
                    # A slow decode engine must not make it look as if no worker was there.
                    self._hold(delivery)
                said = claiming.ask(Claim(item.id, delivery.tries, serving.host, serving.port))
                log.debug("item %s, try %d: %s", item.id, delivery.tries, said)
                if said is ClaimWord.YOURS:
                    said = claiming.wait(serving.hold_seconds, lambda: self._hold(delivery))
        except Unreachable as error:
            # What stands on a queue may be no text, and names no terminal wants to see.
            log.warning("no engine answers for %a: %a", item.id, str(error))
            if time.time() > item.deadline:
                self._queue.done(item.id)
            return
        finally:
            self._arm(None)
        if said in (ClaimWord.GONE, ClaimWord.OVER):
            self._queue.done(item.id)

    def _hold(self, delivery: Delivery) -> None:
        try:
            held = self._queue.hold(delivery)
        except QueueError as error:
            self._missed(error)
            return
        self._reached()
        if not held:
            # The decode engine is served by us all the same, and refuses the other.
            log.info("%s was given to another worker, too", delivery.item.id)

    def _arm(self, claiming: Claiming | None) -> None:
        with self._lock:
            self._claiming = claiming

    def _missed(self, error: QueueError) -> None:
        if not self._away:
            log.warning("the prefill queue fails us: %s", error)
        self._away = True

    def _reached(self) -> None:
        if self._away:
            log.warning("the prefill queue is back")
        self._away = False
