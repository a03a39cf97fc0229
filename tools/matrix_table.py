"""The table of `make matrix`: python -m tools.matrix_table REPORT... writes benchmarks/MATRIX.md

A REPORT is JUnit XML of `pytest -m matrix`, of all tests or of some: a section of the page is one test, and what the
reports say nothing of stays as it was, with its date. A cell counts the cases that have both values:

    9             all passed
    7 of 9        the others failed
    9, 3 skipped  of which these cannot be run where it was run

Source of the form: pytest's src/_pytest/junitxml.py; what a case is made of is a property (tests/matrix.py).
"""

import argparse
import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from xml.etree import ElementTree

PAGE: Final = Path(__file__).parents[1] / "benchmarks/MATRIX.md"
CASE: Final = "matrix case"
SECTION: Final = "## "
HEAD: Final = """# What `make matrix` ran

`make test` and `make slow` run a covering array of each product of cases, `make matrix` all of it and the cases that are only there, and writes this
page (`tools/matrix_table.py`). A cell counts the cases that have both values: `9` means that nine passed.
"""


@dataclass(frozen=True, slots=True)
class MatrixCase:
    """
    Attributes:
        values: By the names of its parameters, those first that the product is of.
        outcome: passed, failed or skipped.
    """

    test: str
    values: Mapping[str, str]
    outcome: str
    date: str
    seconds: float


def read(report: str) -> list[MatrixCase]:
    """Of a report's text. Raises ElementTree.ParseError. A test that says no case is no part of a product."""
    found = []
    for suite in ElementTree.fromstring(report).iter("testsuite"):
        date = suite.get("timestamp", "").partition("T")[0]
        for case in suite.iter("testcase"):
            said = [
                one.get("value", "") for one in case.iter("property") if one.get("name") == CASE
            ]
            if not said:
                continue
            kinds = {child.tag for child in case}
            failed, skipped = kinds & {"failure", "error"}, "skipped" in kinds
            outcome = "failed" if failed else "skipped" if skipped else "passed"
            path = case.get("classname", "").replace(".", "/")
            name = case.get("name", "").partition("[")[0]
            seconds = float(case.get("time", "0"))
            test = f"{path}.py::{name}"
            found.append(MatrixCase(test, json.loads(said[0]), outcome, date, seconds))
    return found


def page(before: str, cases: Iterable[MatrixCase]) -> str:
    """`before`: the page as it was; empty for none."""
    sections = {}
    for part in before.split(f"\n{SECTION}")[1:]:
        sections[part.partition("\n")[0]] = part.partition("\n")[2].strip()
    by_test: dict[str, list[MatrixCase]] = defaultdict(list)
    for case in cases:
        by_test[case.test].append(case)
    sections |= {f"`{test}`": section(found) for test, found in by_test.items()}
    return "\n".join(
        [HEAD, *(f"{SECTION}{test}\n\n{sections[test]}\n" for test in sorted(sections))]
    )


def section(cases: Sequence[MatrixCase]) -> str:
    """Of one test: what was run when, and a table of its first two parameters."""
    outcomes = Counter(case.outcome for case in cases)
    names = list(cases[0].values)
    values = {name: list(dict.fromkeys(case.values[name] for case in cases)) for name in names}
    product = " x ".join(f"{len(values[name])} {name}" for name in names)
    said = [
        f"{outcomes[kind]} {kind}" for kind in ("passed", "failed", "skipped") if outcomes[kind]
    ]
    took = sum(case.seconds for case in cases)
    summary = f"{max(case.date for case in cases)}: {product}; {', '.join(said)}; {took:.0f} s."
    lines = [summary, ""]
    rows, columns = names[0], names[1] if len(names) > 1 else ""
    across = values.get(columns, ["cases"])
    lines += [f"| {rows} | {' | '.join(across)} |", f"|---{'|---' * len(across)}|"]
    cells: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for case in cases:
        cells[case.values[rows], case.values.get(columns, "cases")][case.outcome] += 1
    for row in values[rows]:
        lines.append(f"| {row} | {' | '.join(_cell(cells[row, column]) for column in across)} |")
    return "\n".join(lines)


def _cell(outcomes: Mapping[str, int]) -> str:
    passed, failed, skipped = (outcomes.get(kind, 0) for kind in ("passed", "failed", "skipped"))
    if not passed + failed + skipped:
        return ""
    text = f"{passed} of {passed + failed}" if failed else str(passed)
    return f"{text}, {skipped} skipped" if skipped else text


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("reports", nargs="+", type=Path)
    cases = [case for report in parser.parse_args().reports for case in read(report.read_text())]
    PAGE.write_text(page(PAGE.read_text() if PAGE.exists() else "", cases))
