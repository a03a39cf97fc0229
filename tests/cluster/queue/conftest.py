"""One Redis for all tests of queues that only read and write; each has a queue of its own in it."""

from collections.abc import Iterator

import pytest

from tests.support.redis import RedisServer, redis_server


@pytest.fixture(scope="session")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with redis_server(tmp_path_factory.mktemp("redis")) as server:
        yield server
