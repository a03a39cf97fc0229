"""Items to put on a queue, and how long a test waits for one."""

from pdgate.cluster.queue.contract import Delivery, Item, Queue
from tests.support import waiting

PATIENCE_SECONDS = waiting.PATIENCE_SECONDS


def item(name: str) -> Item:
    return Item(name, "127.0.0.1", 1, tokens=7, deadline=4e9)


def taken(queue: Queue, worker: str = "a") -> Delivery:
    delivery = queue.take(worker, PATIENCE_SECONDS)
    assert delivery is not None
    return delivery
