"""Reference engines that announce themselves in a real Redis, and a gateway told of nothing else."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.in_redis import InRedis
from tests.end_to_end.reference.callers import Callers, ask
from tests.end_to_end.reference.fleet import Engine, Fleet, Gateway
from tests.support.redis import RedisServer, redis_server

PROTOCOL, TRANSFER = "vllm-nixl", "tcp"
CALLERS = 4


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    with redis_server(tmp_path) as server:
        yield server


def announced(fleet: Fleet, server: RedisServer, role: str) -> Engine:
    """One that is listed: it says that it is ready just before."""
    listed = ("--directory", "redis", "--directory-option", f"url={server.url}")
    more = ("--directory-option", "lease_seconds=2", "--min-itl-ms", "20")
    engine = fleet.engine(role, PROTOCOL, TRANSFER, *listed, *more, "--shutdown-timeout", "30")
    key = f"/workers/{role}/{engine.url.removeprefix('http://').replace(':', '/')}"
    engine.process.wait_until(lambda: InRedis(server).keys().count(key) or None, f"{key} in Redis")
    return engine


def test_a_pair_is_served_and_redis_may_be_away(own_fleet: Fleet, server: RedisServer) -> None:
    """And an engine that is asked to end leaves without a call lost."""
    announced(own_fleet, server, "prefill")
    first, second = (announced(own_fleet, server, "decode") for _ in range(2))
    with own_fleet.serve("--directory", "redis", "--redis", server.url) as gateway:
        assert ask(gateway)
        with Callers(gateway, CALLERS).asking() as callers:
            callers.wait_for(CALLERS)
            server.stop()
            says(gateway, "degraded", 3)
            callers.wait_for(CALLERS)
            # All leases have to be made anew.
            server.forget()
            server.start()
            says(gateway, "current", 3)
            gateway.process.wait_until(
                lambda: len(InRedis(server).keys()) == 3 or None, "all engines in Redis"
            )
            first.process.signal(signal.SIGTERM)
            assert first.process.wait_for_end() == 0
            callers.wait_for(CALLERS)
    assert second.metric("vllm:request_success_total") > 0
    assert len(InRedis(server).keys()) == 2


def says(gateway: Gateway, state: str, instances: int) -> None:
    """Waits until /ready says so of the directory; it is 200 all the time."""

    def said() -> bool | None:
        answer = gateway.ready()
        assert answer["ready"]
        return answer["directory"] == {"state": state, "instances": instances} or None

    gateway.process.wait_until(said, f"a {state} directory")
