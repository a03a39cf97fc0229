"""What the guard measures: whole calls, the same in every run, and dearer if the path is."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pdgate.gateway.intake import Intake

if TYPE_CHECKING:
    from benchmarks.guard.baseline import Baseline

# It is not installed, and so is imported where a test needs it: the wheel's tests have none.
pytestmark = pytest.mark.source


def measured() -> "Baseline":
    """Without valgrind, and so of bytecodes."""
    from benchmarks.guard.baseline import Baseline
    from benchmarks.guard.figures import figures
    from benchmarks.guard.measured import per_call
    from benchmarks.guard.runs import new_loop, traced
    from pdgate.protocols import request_id

    # Ids are made 256 at once: else it is by chance which of two short runs makes them.
    request_id._none_ahead()
    loop = new_loop()
    found = loop.run_until_complete(traced(loop))
    return Baseline.of(figures(None, per_call(found)))


@pytest.fixture(scope="module")
def before() -> "Baseline":
    return measured()


def burning(whole: Callable[..., Any]) -> Callable[..., Any]:
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        # Half of what the dearest call takes, as what other tests left in the process adds to it.
        for _ in range(2000):
            pass
        return whole(*args, **kwargs)

    return wrapper


def test_a_path_that_burns_more_fails_and_the_same_one_passes(
    before: "Baseline", monkeypatch: pytest.MonkeyPatch
) -> None:
    from benchmarks.guard.verdict import judge

    again = measured()
    monkeypatch.setattr(Intake, "call", burning(Intake.call))
    verdict = judge(before, measured())

    assert judge(before, again).worse == ()
    # Nothing was added for each event.
    assert verdict.worse == ("whole_200", "whole_8k", "stream")
    assert any("burning.<locals>.wrapper" in line for line in verdict.lines)


def test_an_event_costs_one_write_and_nothing_else_of_the_loop(before: "Baseline") -> None:
    from benchmarks.guard.figures import EVENT

    assert before.figures[EVENT].operations == {"writes": 1}


@pytest.mark.parametrize("name", ["gateway", "relay", "wire"])
def test_every_contender_asks_both_engines(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who forgets prefill's blocks gets no answer of decode's, and no figure."""
    from benchmarks.guard import scenarios
    from benchmarks.guard.memory_wire import WrongAnswer
    from benchmarks.guard.runs import CONTENDERS, new_loop, serve

    async def all_calls() -> None:
        async with CONTENDERS[name](loop) as client:
            for scenario in scenarios.SCENARIOS:
                await serve(client, scenario, calls=2)

    loop = new_loop()
    loop.run_until_complete(all_calls())

    monkeypatch.setattr(scenarios, "BLOCKS_WRITTEN", b"of another prefill")
    loop = new_loop()
    with pytest.raises(WrongAnswer):
        loop.run_until_complete(all_calls())


def test_who_waits_for_nothing_is_told() -> None:
    from benchmarks.guard.runs import new_loop
    from benchmarks.guard.still_loop import Stuck

    loop = new_loop()

    with pytest.raises(Stuck):
        loop.run_until_complete(loop.create_future())


@pytest.mark.slow
def test_callgrind_counts_what_is_between_marks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from benchmarks.guard import callgrind

    if not callgrind.installed():
        if os.environ.get("CI"):
            pytest.fail(callgrind.MISSING)
        pytest.skip(callgrind.MISSING)
    program = """
import os, sys
for times in (2000, 6000):
    os.getloadavg()
    sum(range(times))
    sum(range(times))
    os.getloadavg()
"""
    (tmp_path / "burns.py").write_text(program)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    once, thrice = callgrind.instructions("burns")

    assert thrice / once == pytest.approx(3, rel=0.1)
