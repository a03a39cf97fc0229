"""The guard of what a call costs: it fails for a tenth more, says where, and passes otherwise."""

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from benchmarks.guard.baseline import Baseline
    from benchmarks.guard.figures import Figure

# It is not installed, and so is imported where a test needs it: the wheel's tests have none.
pytestmark = pytest.mark.source

VERSIONS = {"python": "3.11", "msgspec": "0.22.0"}


def figure(
    gateway: float | None = 500_000,
    relay: float | None = 100_000,
    *,
    writes: float = 3,
    bytecodes: float = 200,
) -> "Figure":
    from benchmarks.guard.figures import Figure, Function

    functions = {"pdgate.books.closed": Function(1, bytecodes), "pdgate.same": Function(2, 800)}
    return Figure(gateway, relay, {"tasks": 1, "writes": writes}, functions)


def baseline(found: "Figure", made_with: Mapping[str, str] = VERSIONS) -> "Baseline":
    from benchmarks.guard.baseline import Baseline

    return Baseline(made_with, "yardstick", {"whole_200": found})


@pytest.mark.parametrize(
    ("now", "worse"),
    [
        ({"gateway": 549_000}, ()),
        ({"gateway": 551_000}, ("whole_200",)),
        ({"gateway": 300_000}, ()),
        # Another machine or library, on which everything takes more.
        ({"gateway": 700_000, "relay": 140_000}, ()),
        ({"writes": 4}, ("whole_200",)),
        ({"writes": 2}, ()),
        # More bytecodes alone are no more instructions.
        ({"bytecodes": 400}, ()),
    ],
)
def test_a_tenth_more_instructions_or_one_more_write_fails(
    now: dict[str, Any], worse: tuple[str, ...]
) -> None:
    from benchmarks.guard.verdict import judge

    assert judge(baseline(figure()), baseline(figure(**now))).worse == worse


def test_what_failed_is_said_by_function_before_and_now() -> None:
    from benchmarks.guard.verdict import judge

    now = figure(gateway=600_000, bytecodes=260)

    said = "\n".join(judge(baseline(figure()), baseline(now)).lines)

    assert "+60 bytecodes  pdgate.books.closed: 200 -> 260" in said
    assert "pdgate.same" not in said


def test_under_another_python_only_the_ratio_is_compared() -> None:
    from benchmarks.guard.verdict import judge

    now = baseline(figure(writes=4, bytecodes=900), VERSIONS | {"python": "3.14"})

    verdict = judge(baseline(figure()), now)

    assert verdict.worse == ()
    assert "made with python 3.11, not 3.14" in verdict.lines[0]


def test_without_valgrind_bytecodes_are_compared() -> None:
    from benchmarks.guard.verdict import NotComparable, judge

    now = baseline(figure(None, None, bytecodes=320))

    assert judge(baseline(figure()), baseline(figure(None, None))).worse == ()
    assert judge(baseline(figure()), now).worse == ("whole_200",)
    with pytest.raises(NotComparable, match="Python"):
        judge(baseline(figure()), replace(now, made_with={"python": "3.14"}))


def test_another_yardstick_needs_another_baseline() -> None:
    from benchmarks.guard.verdict import NotComparable, judge

    with pytest.raises(NotComparable, match="has changed since the baseline"):
        judge(baseline(figure()), replace(baseline(figure()), yardstick="another"))


def test_a_baseline_is_read_as_it_was_written() -> None:
    from benchmarks.guard.baseline import Baseline

    before = baseline(figure())

    assert Baseline.from_json(before.as_json()) == before
    assert '"pdgate.books.closed": [1, 200]' in before.as_json()


def test_the_baseline_is_of_this_yardstick() -> None:
    """Whoever changes the relay, the wire or the calls measures anew what they cost."""
    from benchmarks.guard.baseline import FILE, Baseline, yardstick
    from benchmarks.guard.figures import NAMES

    found = Baseline.from_json(FILE.read_text())

    assert found.yardstick == yardstick(), "make guard ARGS=--update"
    assert tuple(found.figures) == NAMES
    assert all((one.ratio or 0) > 1 for one in found.figures.values())
