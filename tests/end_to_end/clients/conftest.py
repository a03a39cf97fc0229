"""A prefill, a decode and a plain reference engine behind one gateway, and the clients."""

import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.end_to_end.clients import environment
from tests.end_to_end.reference.fleet import Engine, Fleet, Gateway, Route

PROTOCOL = "vllm-nixl"


@dataclass(frozen=True)
class Site:
    gateway: Gateway
    plain: Engine


@pytest.fixture(scope="package")
def clients() -> Path:
    """The Python that has them."""
    return environment.python()


@pytest.fixture(scope="package")
def site() -> Iterator[Site]:
    with ExitStack() as running:
        fleet = Fleet(running, sys.executable)
        pair, plain = fleet.pair(PROTOCOL, "shm"), fleet.single()
        with fleet.gateway(pair, Route(PROTOCOL, "staged"), "--plain", plain.url) as made:
            yield Site(made, plain)
