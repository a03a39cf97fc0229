"""What only a queue on Redis can live through: outages, lost data, and foreign writers."""

import json
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace

import pytest

from pdgate.cluster.queue import redis_streams, settings
from pdgate.cluster.queue.contract import QueueAway, QueueError
from pdgate.cluster.queue.redis_scripts import GROUP
from pdgate.cluster.queue.redis_streams import RedisQueue
from tests.cluster.queue.items import item, taken
from tests.support.redis import RedisServer

WHOLE: dict[str, object] = {
    "id": "r0",
    "host": "127.0.0.1",
    "port": 1,
    "tokens": 7,
    "deadline": 4e9,
}


def forged(**fields: object) -> dict[bytes, bytes]:
    return {b"item": json.dumps(WHOLE | fields).encode(), b"tries": b"0"}


RUBBISH: list[dict[bytes, bytes]] = [
    {b"item": b"{"},
    {b"else": b"1"},
    {b"item": b"{}", b"tries": b"0"},
    {b"item": b"\xff\xfe", b"tries": b"0"},
    {b"item": b'{"deep": ' + 100_000 * b"[", b"tries": b"0"},
    forged() | {b"tries": b"\xff"},
    forged() | {b"tries": b"9" * 5000},
    forged(port=0),
    forged(port=1 << 16),
    forged(tokens=-1),
    forged(id="r" * 5000),
    forged(host="h" * 1000),
    forged(padding="x" * (1 << 20)),
]


def opened(server: RedisServer, model: str = "tiny", **options: float) -> RedisQueue:
    chosen = replace(settings.read(server.url), **options)  # type: ignore[arg-type]
    return RedisQueue(chosen, model)


@pytest.fixture
def queue(own_redis: RedisServer) -> Iterator[RedisQueue]:
    with closing(opened(own_redis)) as queue:
        yield queue


def test_what_was_put_and_taken_outlives_a_restart(
    queue: RedisQueue, own_redis: RedisServer
) -> None:
    queue.put(item("x"))
    queue.put(item("y"))
    held = taken(queue, "a")

    own_redis.stop()
    with pytest.raises(QueueAway):
        queue.put(item("z"))
    own_redis.start()

    assert queue.hold(held)
    assert taken(queue, "b").item == item("y")
    assert (queue.depth().waiting, queue.depth().taken) == (0, 2)


def test_a_redis_that_forgot_all_is_a_new_queue(queue: RedisQueue, own_redis: RedisServer) -> None:
    queue.put(item("x"))
    held = taken(queue)
    own_redis.stop()
    own_redis.forget()
    own_redis.start()

    assert not queue.hold(held)
    queue.free("x")
    queue.done("x")
    assert queue.take("a", 0) is None
    queue.put(item("x"))
    assert taken(queue).tries == 1


def test_a_frozen_redis_is_away(
    queue: RedisQueue, own_redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_streams, "ANSWER_SECONDS", 0.2)
    own_redis.freeze()
    try:
        with closing(opened(own_redis)) as hasty, pytest.raises(QueueAway):
            hasty.put(item("x"))
    finally:
        own_redis.thaw()

    queue.put(item("y"))


def test_holding_starts_the_wait_for_a_silent_worker_anew(redis: RedisServer) -> None:
    """The entry is made old by hand, so that nothing here depends on how fast the test is."""
    model = uuid.uuid4().hex
    with closing(opened(redis, model, redeliver_seconds=300)) as queue, redis.client() as client:
        queue.put(item("x"))
        held = taken(queue, "a")
        stream = f"{{pdgate:prefill:{model}}}:items"
        client.xclaim(stream, GROUP, "a", 0, [held.receipt], idle=299_000, justid=True)
        assert queue.hold(held)
        assert client.xpending_range(stream, GROUP, "-", "+", 1)[0]["time_since_delivered"] < 200e3

        client.xclaim(stream, GROUP, "a", 0, [held.receipt], idle=301_000, justid=True)
        again = taken(queue, "b")

    assert (again.item, again.tries) == (item("x"), 2)


def test_what_is_no_item_is_put_aside(redis: RedisServer) -> None:
    model = uuid.uuid4().hex
    with closing(opened(redis, model)) as queue, redis.client() as client:
        for rubbish in RUBBISH:
            client.xadd(f"{{pdgate:prefill:{model}}}:items", rubbish)
        queue.put(item("x"))

        assert taken(queue).item == item("x")
        assert queue.depth().buried == len(RUBBISH)


def test_an_error_of_redis_is_no_outage(redis: RedisServer) -> None:
    model = uuid.uuid4().hex
    with closing(opened(redis, model)) as queue, redis.client() as client:
        client.set(f"{{pdgate:prefill:{model}}}:ids", "something else")

        with pytest.raises(QueueError) as refused:
            queue.put(item("x"))
    assert not isinstance(refused.value, QueueAway)


def test_who_waits_gets_what_another_connection_frees(redis: RedisServer) -> None:
    model = uuid.uuid4().hex
    with (
        closing(opened(redis, model)) as queue,
        closing(opened(redis, model)) as other,
        ThreadPoolExecutor(1) as pool,
    ):
        queue.put(item("x"))
        taken(queue, "a")
        waiting = pool.submit(taken, other, "b")
        queue.free("x")

        assert waiting.result().tries == 2
