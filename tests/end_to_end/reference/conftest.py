"""Reference engines and gateways as real processes, each started once for all tests."""

import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.end_to_end.reference.fleet import Fleet
from tests.support.etcd import EtcdServer, etcd_server


@pytest.fixture(scope="session")
def fleet() -> Iterator[Fleet]:
    with ExitStack() as running:
        yield Fleet(running, sys.executable)


@pytest.fixture
def own_fleet() -> Iterator[Fleet]:
    """Its engines end with the test: nobody else is to find them."""
    with ExitStack() as running:
        yield Fleet(running, sys.executable)


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[EtcdServer]:
    with etcd_server(tmp_path) as server:
        yield server
