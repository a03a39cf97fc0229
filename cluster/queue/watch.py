"""The depth of a prefill queue, read now and then, so that asking for it takes no time.

Every engine shows the whole queue on its /metrics, so the numbers of several must not be added up.
"""

import logging
import threading
import time
from collections.abc import Mapping

from pdgate.cluster.queue.contract import Depth, Queue, QueueError

EVERY_SECONDS = 2.0

log = logging.getLogger(__name__)


class QueueWatch:
    """
    Attributes:
        depth: As it was a moment ago; None while the queue cannot be asked.
    """

    def __init__(self, queue: Queue, every_seconds: float = EVERY_SECONDS) -> None:
        """Watches until it is closed; the queue is the caller's to close, after us."""
        self.depth: Depth | None = None
        self._back_at = 0.0
        self._answered_at = time.monotonic()
        self._queue = queue
        self._every_seconds = every_seconds
        self._closing = threading.Event()
        self._looking = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="pdgate-queue-watch", daemon=True)
        self._thread.start()

    @property
    def away_seconds(self) -> float:
        """Since it last answered, or since we first asked; 0 while it does."""
        return 0.0 if self.depth is not None else time.monotonic() - self._answered_at

    @property
    def unattended_seconds(self) -> float:
        """Seconds for which the queue could be asked, and no worker did.

        While it is away no worker can ask, and once it is back they take a moment.
        """
        depth = self.depth
        if depth is None:
            return 0.0
        now = time.monotonic()
        could = now - self._back_at
        if depth.idle_seconds is None:
            return could
        return min(depth.idle_seconds + now - self._answered_at, could)

    def look(self) -> None:
        """Ask now: what is known may be as old as two looks are apart."""
        with self._looking:
            self._ask()

    def close(self) -> None:
        self._closing.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._closing.is_set():
            self.look()
            self._closing.wait(self._every_seconds)

    def _ask(self) -> None:
        try:
            found = self._queue.depth()
            self._answered_at = time.monotonic()
            if self.depth is None:
                self._back_at = self._answered_at
            self.depth = found
        except QueueError as error:
            # Said once; the workers say more.
            if self.depth is not None:
                log.warning("the prefill queue cannot be asked: %s", error)
            self.depth = None
        # The last stop of a thread: what it said last would be taken for true for ever.
        except Exception:
            log.exception("the prefill queue cannot be asked")
            self.depth = None


def gauges(depth: Depth | None, away_seconds: float) -> Mapping[str, tuple[str, float]]:
    """Name -> help and value; of a queue that cannot be asked only that, and for how long."""
    reach = {
        "pdgate_prefill_queue_up": ("Whether the queue could be asked", float(depth is not None)),
        "pdgate_prefill_queue_away_seconds": ("Since it last could be", away_seconds),
    }
    if depth is None:
        return reach
    return reach | {
        "pdgate_prefill_queue_waiting": ("Prompts that no worker has taken", depth.waiting),
        "pdgate_prefill_queue_taken": ("Prompts that a worker has taken", depth.taken),
        "pdgate_prefill_queue_buried": ("Prompts given up, as far as kept", depth.buried),
        "pdgate_prefill_queue_oldest_seconds": (
            "Since the oldest prompt that is not done was put, or put back",
            depth.oldest_seconds,
        ),
    }
