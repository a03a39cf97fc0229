"""One etcd, and one Redis, for all tests that only read and write, and a fresh one for those that harm it."""

from collections.abc import Iterator

import pytest

from tests.support.etcd import EtcdServer, etcd_server
from tests.support.redis import RedisServer, redis_server


@pytest.fixture(scope="session")
def _shared_etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdServer]:
    with etcd_server(tmp_path_factory.mktemp("etcd")) as server:
        yield server


@pytest.fixture
def etcd(_shared_etcd: EtcdServer) -> Iterator[EtcdServer]:
    """Empty."""
    yield _shared_etcd
    for key in _shared_etcd.keys():  # noqa: SIM118
        _shared_etcd.delete(key)


@pytest.fixture
def own_etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdServer]:
    with etcd_server(tmp_path_factory.mktemp("etcd")) as server:
        yield server


@pytest.fixture(scope="session")
def _shared_redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with redis_server(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture
def redis(_shared_redis: RedisServer) -> Iterator[RedisServer]:
    """Empty."""
    yield _shared_redis
    with _shared_redis.client() as client:
        client.flushall()


@pytest.fixture
def own_redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with redis_server(tmp_path_factory.mktemp("redis")) as server:
        yield server
