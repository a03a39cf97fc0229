"""Pairs of engines that end with the test."""

import contextlib
from collections.abc import Iterator
from contextlib import closing

import pytest

from tests.support.engine_pair import Pair, Start


@pytest.fixture(params=["shm", "tcp"])
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def start(backend: str) -> Iterator[Start]:
    with contextlib.ExitStack() as stack:
        yield lambda dialect, **options: stack.enter_context(
            closing(Pair(dialect, backend, **options))
        )
