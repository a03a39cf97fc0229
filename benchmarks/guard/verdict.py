"""Whether the path has become dearer than the baseline allows, and where.

instructions, gateway in relays    LIMIT times as many fail
tasks, timers, writes, ...         one more per call or event fails
bytecodes                          in place of instructions where those were not counted
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from benchmarks.guard.baseline import Baseline
from benchmarks.guard.figures import Figure, Function

LIMIT = 1.10
"""Runs of one checkout differ by less than a hundredth."""

SHOWN_FUNCTIONS = 20
NOTHING = Function(0, 0)


@dataclass(frozen=True, slots=True)
class Verdict:
    """
    Attributes:
        lines: To be read.
        worse: Names of the figures that fail.
    """

    lines: tuple[str, ...]
    worse: tuple[str, ...]


class NotComparable(Exception):
    """Why nothing can be said."""


def judge(before: Baseline, now: Baseline) -> Verdict:
    """Raises NotComparable."""
    if before.yardstick != now.yardstick:
        raise NotComparable("what the gateway is measured with has changed since the baseline")
    same_python = before.made_with["python"] == now.made_with["python"]
    lines = [*_versions(before.made_with, now.made_with)]
    worse = []
    for name, figure in now.figures.items():
        was = before.figures[name]
        change = _change(was, figure, same_python=same_python)
        more = tuple(_more_operations(was.operations, figure.operations)) if same_python else ()
        lines.append(f"{name:10} {_cost(figure)}  {change - 1:+7.1%}")
        lines.extend(f"{'':10} {said}" for said in more)
        if change > LIMIT or more:
            worse.append(name)
            if same_python:
                lines.extend(f"{'':10} {said}" for said in differences(was, figure))
        elif change < 1 / LIMIT:
            lines.append(f"{'':10} so much better that the baseline should say it")
    return Verdict(tuple(lines), tuple(worse))


def _change(was: Figure, now: Figure, *, same_python: bool) -> float:
    if was.ratio is not None and now.ratio is not None:
        return now.ratio / was.ratio
    if not same_python:
        raise NotComparable("without valgrind, only runs of the baseline's Python can be compared")
    return now.bytecodes / was.bytecodes


def _cost(figure: Figure) -> str:
    if figure.ratio is None:
        return f"{figure.bytecodes:9,.0f} bytecodes"
    return f"{figure.gateway:9,.0f} instructions = {figure.ratio:5.2f} relays"


def _versions(before: Mapping[str, str], now: Mapping[str, str]) -> Iterator[str]:
    for name in sorted(before.keys() | now.keys()):
        if before.get(name) != now.get(name):
            yield f"note: the baseline was made with {name} {before.get(name)}, not {now.get(name)}"


def _more_operations(was: Mapping[str, float], now: Mapping[str, float]) -> Iterator[str]:
    for name in sorted(now):
        if now[name] > was.get(name, 0) + 0.01:
            yield f"{name}: {was.get(name, 0):g} -> {now[name]:g}"


def differences(was: Figure, now: Figure) -> Iterator[str]:
    """The functions that do more or less than they did, the largest difference first."""
    found = []
    for name in was.functions.keys() | now.functions.keys():
        old, new = was.functions.get(name, NOTHING), now.functions.get(name, NOTHING)
        by = new.bytecodes - old.bytecodes
        # Drawing an engine at random takes a few bytecodes more or less.
        if abs(by) >= 0.5:
            said = (
                f"{by:+6.0f} bytecodes  {name}: {old.bytecodes:.0f} -> {new.bytecodes:.0f},"
                f" entered {old.entered:g} -> {new.entered:g}"
            )
            found.append((abs(by), said))
    if not found:
        yield "no function runs more bytecodes: what it calls, in C, has become dearer"
    for _, said in sorted(found, reverse=True)[:SHOWN_FUNCTIONS]:
        yield said
