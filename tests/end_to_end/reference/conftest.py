"""Reference engines and gateways as real processes, each started once for all tests."""

import sys
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.end_to_end.reference.fleet import Fleet


@pytest.fixture(scope="session")
def fleet() -> Iterator[Fleet]:
    with ExitStack() as running:
        yield Fleet(running, sys.executable)
