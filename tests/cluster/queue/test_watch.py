"""The depth of a queue is known without asking it, and known to be unknown."""

import threading
from contextlib import closing

from pdgate.cluster.queue.contract import Depth, QueueAway
from pdgate.cluster.queue.memory import MemoryQueue
from pdgate.cluster.queue.settings import QueueSettings
from pdgate.cluster.queue.watch import QueueWatch
from tests.cluster.queue.items import PATIENCE_SECONDS, item
from tests.support.waiting import wait_until

OFTEN = 0.001


class Fickle(MemoryQueue):
    """Fails to answer while `away` is set; `asked` tells of each time."""

    def __init__(self) -> None:
        super().__init__(QueueSettings("memory://it"))
        self.away = self.broken = False
        self.asked = threading.Semaphore(0)

    def depth(self) -> Depth:
        self.asked.release()
        if self.away:
            raise QueueAway("gone for lunch")
        if self.broken:
            raise ZeroDivisionError
        return super().depth()

    def was_asked_again(self) -> None:
        """So that the answer to the question before it has been noted."""
        while self.asked.acquire(blocking=False):
            pass
        for _ in range(2):
            assert self.asked.acquire(timeout=PATIENCE_SECONDS)


def test_a_bug_costs_an_answer_and_not_the_watch() -> None:
    queue = Fickle()
    with closing(QueueWatch(queue, OFTEN)) as watch:
        queue.was_asked_again()
        queue.broken = True
        queue.was_asked_again()
        assert watch.depth is None

        queue.broken = False
        wait_until(lambda: watch.depth, "an answer")


def test_the_depth_is_followed_through_an_outage() -> None:
    queue = Fickle()
    queue.put(item("x"))
    with closing(QueueWatch(queue, OFTEN)) as watch:
        queue.was_asked_again()
        assert watch.depth is not None
        assert (watch.depth.waiting, watch.away_seconds) == (1, 0.0)

        wait_until(lambda: watch.unattended_seconds > 0.1, "no worker at all")
        queue.take("worker", 0)
        wait_until(lambda: watch.unattended_seconds > 0.1, "a worker that does not come again")

        queue.away = True
        queue.was_asked_again()
        assert watch.depth is None
        assert watch.away_seconds > 0
        assert watch.unattended_seconds == 0.0
        wait_until(lambda: watch.away_seconds > 0.5, "an outage")

        queue.away = False
        queue.was_asked_again()
        assert watch.depth is not None
        assert watch.away_seconds == 0.0
        # Workers had no queue to ask, and take a moment.
        idle = watch.depth.idle_seconds
        assert idle is not None
        assert watch.unattended_seconds < idle
