"""The page on splitting names every reason there is."""

import re
from importlib.metadata import entry_points

import pytest

from pdgate.forwarders import registry
from pdgate.scheduling.disaggregation import decision
from tests.docs.pages import DOCS, code, table

PAGE = DOCS / "operations" / "conditional-disaggregation.md"

pytestmark = pytest.mark.source


def test_every_reason_of_the_rules_is_explained() -> None:
    explained = {reason for row in table(PAGE) for reason in code(row[0])}
    reasons = {found for name, found in vars(decision).items() if name.isupper()}

    assert reasons - explained == set()


def test_every_decision_is_named() -> None:
    named = {word for row in table(PAGE) for word in row[1].split()}

    assert {taken.value for taken in decision.Taken} - named == set()


def test_the_page_says_where_prefill_cannot_answer_alone() -> None:
    names = {point.name for point in entry_points(group="pdgate.forwarders")}
    section = PAGE.read_text(encoding="utf-8").split("\n## A single token\n")[1].split("\n## ")[0]

    assert {word for word in re.findall("`([a-z-]+)`", section) if word in names} == {
        name for name in names if registry.hands_over(name) and not _prefill_answers_alone(name)
    }


def _prefill_answers_alone(name: str) -> bool:
    """Whether it does in each mode of each generation."""
    return all(
        registry.load(name, mode, generation).prefill_can_answer
        for generation in registry.generations(name) or ("",)
        for mode, why_not in registry.modes(name, generation).items()
        if not why_not
    )
