"""What holds for every queue. Each test runs in memory and against a real Redis."""

import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import replace

import pytest

from pdgate.cluster.queue import settings
from pdgate.cluster.queue.contract import Buried, Depth, Queue, QueueFull
from pdgate.cluster.queue.opening import open_queue
from tests.cluster.queue.items import item, taken
from tests.support.waiting import wait_until

Open = Callable[..., Queue]
SOON = 0.2
"""A redelivery that a test waits for."""
NEVER = 600.0


@pytest.fixture(params=["memory", "redis"])
def start(request: pytest.FixtureRequest) -> Iterator[Open]:
    """Opens an empty queue, with options of `QueueSettings`."""
    url = f"memory://{uuid.uuid4().hex}"
    if request.param == "redis":
        url = request.getfixturevalue("redis").url
    with ExitStack() as stack:

        def start(**options: float) -> Queue:
            patient = replace(settings.read(url), redeliver_seconds=NEVER)
            chosen = replace(patient, **options)  # type: ignore[arg-type]
            return stack.enter_context(closing(open_queue(chosen, uuid.uuid4().hex)))

        yield start


def test_items_come_out_in_the_order_in_which_they_were_put(start: Open) -> None:
    queue = start()
    for name in "xyz":
        queue.put(item(name))

    assert [taken(queue).item for _ in "xyz"] == [item("x"), item("y"), item("z")]


def test_an_empty_queue_gives_nothing(start: Open) -> None:
    assert start().take("a", 0) is None


def test_who_waits_gets_what_is_put(start: Open) -> None:
    queue = start()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(taken, queue)
        queue.put(item("x"))

        assert waiting.result().item == item("x")


def test_nobody_else_gets_what_is_taken(start: Open) -> None:
    queue = start()
    queue.put(item("x"))
    taken(queue, "a")

    assert queue.take("b", 0) is None


def test_items_are_shared_among_workers_each_to_one(start: Open) -> None:
    queue = start()
    names = [f"{number}" for number in range(40)]

    def work(worker: str) -> list[str]:
        found = []
        while delivery := queue.take(worker, 0):
            found.append(delivery.item.id)
            queue.done(delivery.item.id)
        return found

    for name in names:
        queue.put(item(name))
    with ThreadPoolExecutor(4) as pool:
        found = [name for names in pool.map(work, "abcd") for name in names]

    assert sorted(found) == sorted(names)


def test_an_item_that_is_there_can_be_put_again_to_no_effect(start: Open) -> None:
    """So whoever waits for it can make sure that it is there, as often as it likes."""
    queue = start()
    queue.put(item("x"))
    queue.put(item("x"))
    taken(queue)
    queue.put(item("x"))

    assert queue.take("b", 0) is None


def test_what_is_done_is_gone_and_may_be_put_again(start: Open) -> None:
    queue = start()
    queue.put(item("x"))
    queue.done(taken(queue).item.id)
    assert queue.depth().waiting == queue.depth().taken == 0

    queue.put(item("x"))
    assert taken(queue).tries == 1


def test_what_waits_can_be_taken_back(start: Open) -> None:
    """Its call was cancelled before anybody took it."""
    queue = start()
    queue.put(item("x"))
    queue.done("x")
    queue.done("never heard of")

    assert queue.take("a", 0) is None


def test_an_item_of_a_silent_worker_goes_to_another(start: Open) -> None:
    queue = start(redeliver_seconds=SOON)
    queue.put(item("x"))
    taken(queue, "killed")

    again = taken(queue, "b")

    assert (again.item, again.tries) == (item("x"), 2)


def test_a_worker_can_hold_what_it_has(start: Open) -> None:
    queue = start()
    queue.put(item("x"))
    delivery = taken(queue, "a")

    assert queue.hold(delivery)
    assert queue.take("b", 0) is None


def test_who_lost_an_item_hears_of_it(start: Open) -> None:
    queue = start(redeliver_seconds=SOON)
    queue.put(item("x"))
    lost = taken(queue, "a")
    taken(queue, "b")

    assert not queue.hold(lost)


def test_a_freed_item_is_the_next_ones_at_once(start: Open) -> None:
    queue = start()
    queue.put(item("x"))
    lost = taken(queue, "a")
    queue.free("x")

    again = taken(queue, "b")

    assert again.tries == 2
    assert not queue.hold(lost)
    assert queue.take("a", 0) is None


def test_freeing_what_waits_or_is_gone_changes_nothing(start: Open) -> None:
    queue = start()
    queue.put(item("x"))
    queue.free("x")
    queue.free("never heard of")

    assert taken(queue).tries == 1
    assert queue.take("b", 0) is None


def test_a_full_queue_refuses(start: Open) -> None:
    queue = start(capacity=2)
    queue.put(item("x"))
    queue.put(item("y"))
    with pytest.raises(QueueFull):
        queue.put(item("z"))

    queue.put(item("x"))
    queue.done(taken(queue).item.id)
    queue.put(item("z"))


@pytest.mark.parametrize("freed", [True, False], ids=["freed", "silent"])
def test_an_item_is_given_up_after_its_tries(start: Open, freed: bool) -> None:
    """What kills every worker that takes it must not kill them all."""
    queue = start(tries=2, redeliver_seconds=NEVER if freed else SOON)
    queue.put(item("deadly"))
    for tries in (1, 2):
        assert taken(queue).tries == tries
        if freed:
            queue.free("deadly")

    while queue.depth().buried == 0:
        assert queue.take("b", SOON) is None

    assert queue.depth().taken == queue.depth().waiting == 0
    with pytest.raises(Buried):
        queue.put(item("deadly"))


def test_depth_tells_who_waits_and_since_when(start: Open) -> None:
    queue = start()
    assert queue.depth() == Depth(0, 0, 0, 0.0, None)
    queue.put(item("x"))
    queue.put(item("y"))
    taken(queue)

    depth = queue.depth()

    assert (depth.waiting, depth.taken, depth.buried) == (1, 1, 0)
    assert 0 <= depth.oldest_seconds < 60


def test_models_do_not_share_their_items() -> None:
    chosen = settings.read(f"memory://{uuid.uuid4().hex}")
    open_queue(chosen, "llama").put(item("x"))

    assert open_queue(chosen, "qwen").take("a", 0) is None
    assert open_queue(chosen, "llama").take("a", 0) is not None


def test_a_queue_knows_whether_a_worker_asks(start: Open) -> None:
    """By what decode engines do nobody is there."""
    queue = start()
    queue.put(item("x"))
    queue.put(item("y"))
    queue.done("y")
    assert queue.depth().idle_seconds is None

    held = taken(queue)

    def idle() -> float:
        found = queue.depth().idle_seconds
        assert found is not None
        return found

    silent = wait_until(lambda: (now := idle()) >= 2.0 and now, "a worker that is silent")
    wait_until(lambda: queue.hold(held) and idle() < silent, "a worker that holds what it has")

    silent = wait_until(lambda: (now := idle()) >= 2.0 and now, "a worker that is silent")
    wait_until(lambda: not queue.take("b", 0) and idle() < silent, "a worker that asks")
