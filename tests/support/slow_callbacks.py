"""No callback of a gateway in a test's own process uses more CPU time than it may.

Left out are callbacks without a function of ours on the stack: engines and clients of tests are on the same
event loop. What loads modules when it is first needed is not left out: such a line names the place.
"""

import gc
import logging
from collections.abc import Iterator

import pytest

from pdgate.gateway.watchdog import ELSEWHERE


class _Lines(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        line = record.getMessage()
        if f": {ELSEWHERE}, at" not in line:
            self.found.append(line)


@pytest.fixture(autouse=True)
def no_slow_callback(request: pytest.FixtureRequest) -> Iterator[None]:
    # As a gateway does with what it began with: a full look through all that other tests left in this
    # process is one callback's time, wherever it happens to begin.
    gc.collect()
    gc.freeze()
    lines, log = _Lines(), logging.getLogger("pdgate.gateway.watchdog")
    log.addHandler(lines)
    try:
        yield
    finally:
        log.removeHandler(lines)
    if request.node.get_closest_marker("finds_slow_callbacks") is None:
        assert lines.found == []
