"""Memory that one process of ours allocated and another one moves."""

from collections.abc import Iterator
from contextlib import closing

import pytest

from pdgate.transfer import registry
from pdgate.transfer.base import Backend, Range
from tests.support import waiting
from tests.support.kv_owner import pattern

SECONDS = waiting.PATIENCE_SECONDS
PAGE = 4096


@pytest.fixture(params=["shm", "tcp"])
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def ours(name: str) -> Iterator[Backend]:
    with closing(registry.load(name)) as backend:
        yield backend


@pytest.fixture
def mover(name: str) -> Iterator[Backend]:
    with closing(registry.load(name)) as backend:
        yield backend


def test_it_can_be_written_from(ours: Backend, mover: Backend) -> None:
    region, target = ours.allocate(PAGE), ours.allocate(PAGE)
    region.memory[:] = pattern(PAGE)
    fd = region.share()
    assert fd is not None
    adopted = mover.adopt(fd, PAGE)

    counted = ours.expect(target, 7, 1, SECONDS)
    mover.write(adopted, target.descriptor, [Range(0, 8, 16)], SECONDS, immediate=7).wait(SECONDS)

    counted.wait(SECONDS)
    assert target.memory[8:24] == pattern(16)


def test_nothing_can_be_expected_in_it(ours: Backend, mover: Backend) -> None:
    fd = ours.allocate(PAGE).share()
    assert fd is not None

    with pytest.raises(TypeError, match="cannot reach"):
        mover.expect(mover.adopt(fd, PAGE), 1, 1, SECONDS)
