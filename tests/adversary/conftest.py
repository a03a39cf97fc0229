"""The attacks' budget: short in `make newer`, as long as PDGATE_ADVERSARY_SECONDS says elsewhere."""

import os
from collections.abc import Iterator
from contextlib import closing

import pytest

from tests.support.slow_callbacks import no_slow_callback

__all__ = ["no_slow_callback"]

from tests.support.engine_pair import P_BLOCKS, arrival
from tests.support.fake_core import LAYOUT, FakeCore
from tests.support.kv_strangers import member

SHORT_SECONDS = 3.0
"""Of one flood in `make newer`; `make adversary` has a minute for each."""


@pytest.fixture(scope="session")
def seconds() -> float:
    """How long one flood lasts. A bound is the same however long that is."""
    return float(os.environ.get("PDGATE_ADVERSARY_SECONDS", SHORT_SECONDS))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All of them start processes, and flood them for seconds."""
    for item in items:
        if item.path.is_relative_to(os.path.dirname(__file__)):
            item.add_marker(pytest.mark.slow)


@pytest.fixture
def prefill() -> Iterator[FakeCore]:
    """With a secret; it keeps two blocks under the key "k", beside those of another tenant."""
    with closing(FakeCore("tcp", "vllm-kvt", "prefill", identity=member())) as core:
        core.write(range(LAYOUT.blocks), seed=9)
        core.prefill(arrival("p1", "k", params={"do_remote_decode": True}), P_BLOCKS)
        yield core
