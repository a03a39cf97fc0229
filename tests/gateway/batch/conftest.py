"""States of batches, on a disk and in a real Redis."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.gateway.batch import batches
from tests.gateway.batch.states import KINDS, States
from tests.support.redis import RedisServer, redis_server


@pytest.fixture(scope="package")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with redis_server(Path(tmp_path_factory.mktemp("redis"))) as server:
        yield server


@pytest.fixture(params=KINDS)
def state_url(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Of the state, empty for SQLite: for all that the test serves, too."""
    url = ""
    if request.param == "redis":
        server: RedisServer = request.getfixturevalue("redis")
        with server.client() as client:
            client.flushdb()
        url = server.url
    monkeypatch.setattr(batches, "STATE", url)
    return url


@pytest.fixture
async def states(state_url: str, tmp_path: Path) -> AsyncIterator[States]:
    states = States(tmp_path, state_url)
    yield states
    await states.close()
