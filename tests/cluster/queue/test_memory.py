"""What time does to a queue in memory, on a clock of the test's own."""

from pdgate.cluster.queue.memory import MemoryQueue
from pdgate.cluster.queue.settings import QueueSettings
from tests.cluster.queue.items import item, taken
from tests.support.clock import Clock


def test_holding_starts_the_wait_for_a_silent_worker_anew() -> None:
    clock = Clock(1000.0)
    queue = MemoryQueue(QueueSettings("memory://it", redeliver_seconds=10), clock)
    queue.put(item("x"))
    delivery = taken(queue, "a")

    clock.now += 9
    assert queue.hold(delivery)
    clock.now += 9
    assert queue.take("b", 0) is None
    clock.now += 1
    assert taken(queue, "b").item == item("x")


def test_the_oldest_items_age_is_told() -> None:
    clock = Clock(1000.0)
    queue = MemoryQueue(QueueSettings("memory://it"), clock)
    queue.put(item("x"))
    clock.now += 5
    queue.put(item("y"))
    clock.now += 2
    assert queue.depth().oldest_seconds == 7

    queue.done("x")
    assert queue.depth().oldest_seconds == 2
