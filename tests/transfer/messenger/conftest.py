"""A decode engine without a model, on each backend, whose pages are the host's or a fake device's."""

import queue
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from pdgate.transfer.messenger.receiving import Patience
from pdgate.transfer.runtime.regions import LocalMemory
from tests.support.engine_pair import D_BLOCKS, arrival
from tests.support.fake_core import SECONDS, FakeCore
from tests.support.fake_core_on_device import DeviceCore
from tests.support.kv_memory_kinds import FAKE, HOST
from tests.transfer.messenger.nodes import Node

IMPATIENT = Patience(ping=0.05, stop=0.2)
"""For tests in which a peer does not confirm that it has stopped: they wait this long."""

_HOSTS = [("shm", HOST), ("tcp", HOST)]
_WHOLE = [pytest.param(one, FAKE, marks=pytest.mark.matrix) for one in ("shm", "tcp")]

EVERYWHERE = pytest.mark.parametrize(("backend", "kind"), [*_HOSTS, *_WHOLE])
"""Backends and kinds of decode's memory; those on a device by `make matrix`."""
ALSO_ON_A_DEVICE = pytest.mark.parametrize(("backend", "kind"), [*_HOSTS, ("shm", FAKE), _WHOLE[1]])
"""For the few that are to run over one each time."""

HOLDS_FOR_DEAD = Patience(ping=0.05, silence=2.0, stop=0.2)
"""For those in which a peer says nothing; until then it must say something that often."""


@pytest.fixture(params=["shm", "tcp"])
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def kind() -> str:
    """Of decode's memory."""
    return HOST


def core_of(kind: str) -> type[FakeCore]:
    return FakeCore if kind == HOST else DeviceCore


@pytest.fixture
def decode(backend: str, kind: str) -> Iterator[FakeCore]:
    with closing(core_of(kind)(backend, "vllm-kvt", "decode")) as core:
        yield core


@pytest.fixture
def impatient(backend: str, kind: str) -> Iterator[FakeCore]:
    with closing(core_of(kind)(backend, "vllm-kvt", "decode", patience=IMPATIENT)) as core:
        yield core


@pytest.fixture
def mistrustful(backend: str, kind: str) -> Iterator[FakeCore]:
    with closing(core_of(kind)(backend, "vllm-kvt", "decode", patience=HOLDS_FOR_DEAD)) as core:
        yield core


def staged(port: int, **more: Any) -> dict[str, Any]:
    address = {"remote_host": "127.0.0.1", "remote_port": port}
    return {**address, "do_remote_prefill": True, **more}


def load(core: FakeCore, port: int, key: str = "k", request_id: str = "d1") -> None:
    core.load(arrival(request_id, key, params=staged(port)), D_BLOCKS)


def tiles(core: FakeCore | Node) -> "queue.Queue[int]":
    """Gets an item for each tile that has landed, from now on."""
    landed: queue.Queue[int] = queue.Queue()
    (region,) = core.regions
    assert isinstance(region, LocalMemory)
    arrivals = region.arrivals
    assert arrivals is not None
    count = arrivals.count

    def counted(immediate: int) -> None:
        count(immediate)
        landed.put(immediate)

    arrivals.count = counted  # type: ignore[method-assign]
    return landed


def error_of(core: FakeCore) -> str:
    request_id, error = core.results.get(timeout=SECONDS)
    assert error is not None, request_id
    return error
