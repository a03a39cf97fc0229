"""The page on splitting names every reason there is."""

import pytest

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
