"""The page on verification names every result and every cause."""

import pytest

from pdgate.gateway.verification.causes import HINTS, VerificationCause
from pdgate.gateway.verification.window import WindowResult
from tests.docs.pages import DOCS, code, table

PAGE = DOCS / "operations" / "kv-verification.md"

pytestmark = pytest.mark.source


def test_the_page_explains_every_label_value() -> None:
    named = {code(row[0])[0] for row in table(PAGE) if row[0].startswith("`")}

    assert named - {"pdgate engine"} == {*WindowResult, *VerificationCause}


def test_every_cause_has_a_hint() -> None:
    assert HINTS.keys() == set(VerificationCause)
