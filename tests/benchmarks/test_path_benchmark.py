"""Where a call's time goes: every line of code works for one part, and the sum is the whole."""

import json
import subprocess
import sys
from collections.abc import Callable
from types import FrameType, FunctionType

import pytest

from tests.support.waiting import PATIENCE_SECONDS

# It is not installed, and so is imported where a test needs it: the wheel's tests have none.
pytestmark = pytest.mark.source


def calls(call: Callable[[], FrameType]) -> FrameType:
    return call()


def called_from(module: str, call: Callable[[], FrameType]) -> FrameType:
    """What `call` gives, called by code of that module."""
    found: FrameType = FunctionType(calls.__code__, {"__name__": module})(call)
    return found


@pytest.mark.parametrize(
    ("module", "part"),
    [
        ("uvicorn.protocols.http.httptools_impl", "front end and parser"),
        ("pdgate.gateway.front.hot_cycle", "front end and parser"),
        ("pdgate.gateway.service", "intake, keys, admission"),
        ("pdgate.protocols.call", "bodies and protocols"),
        ("pdgate.scheduling.scheduler", "scheduling"),
        ("pdgate.forwarders.execution", "forwarders"),
        ("pdgate.gateway.upstream.exchange", "upstream and deadlines"),
        ("pdgate.gateway.metrics.call_stats", "metrics"),
        ("benchmarks.guard.still_loop", "harness"),
    ],
)
def test_code_belongs_to_the_part_of_its_module(module: str, part: str) -> None:
    from benchmarks.path.parts import part_of

    assert part_of(called_from(module, sys._getframe)) == part


def test_a_library_works_for_whom_calls_it() -> None:
    from benchmarks.path.parts import part_of

    frame = called_from("pdgate.scheduling.scheduler", lambda: called_from("json", sys._getframe))

    assert part_of(frame) == "scheduling"


def test_what_user_code_takes_beyond_the_parts_is_the_event_loops() -> None:
    from benchmarks.path.parts import PARTS
    from benchmarks.path.shares import EVENT_LOOP, KERNEL, Round, of_calls, of_events

    scenarios = {"whole_200": 1, "stream_8": 8, "stream_72": 72}
    parts = {name: dict.fromkeys(PARTS, 2.0 * n) for name, n in scenarios.items()}
    used = {name: (20.0 * n, 5.0 * n) for name, n in scenarios.items()}

    calls, events = of_calls([Round(parts, used)]), of_events([Round(parts, used)])

    assert calls == events
    assert (calls["scheduling"], calls[EVENT_LOOP], calls[KERNEL]) == (2, 20 - 2 * len(PARTS), 5)
    assert sum(calls.values()) == 25


def test_the_pages_table_has_a_row_for_every_part() -> None:
    from benchmarks.page import PAGE, between
    from benchmarks.path.shares import ROWS

    table = between(PAGE.read_text(encoding="utf-8"), "path")

    assert [row for row in ROWS if f"| {row} |" not in table] == []


@pytest.mark.slow
def test_calls_over_real_sockets_have_their_time_told() -> None:
    command = [sys.executable, "-m", "benchmarks.path.sockets", "4"]

    done = subprocess.run(
        command, capture_output=True, text=True, check=True, timeout=3 * PATIENCE_SECONDS
    )

    assert set(json.loads(done.stdout)) == {"whole_200", "stream_8", "stream_72"}
