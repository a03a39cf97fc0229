"""The page on the doctor has every check and every version, as the code has them."""

import pytest

from pdgate.operations.doctor.checks import CHECKS
from pdgate.operations.doctor.rules.alone import TESTED
from tests.docs.pages import DOCS, table

PAGE = DOCS / "operations" / "doctor.md"

pytestmark = pytest.mark.source

CHECK_ROWS = [
    [f"`{one.id}`", one.grade.value, one.way.value, one.finds, one.why, one.cure] for one in CHECKS
]
VERSION_ROWS = [
    [f"`{kind}`", version, how]
    for kind, versions in TESTED.items()
    for version, how in versions.items()
]


def test_the_page_has_every_check() -> None:
    rows = [row for row in table(PAGE) if len(row) == 6]

    assert rows == CHECK_ROWS, "\n".join("| " + " | ".join(row) + " |" for row in CHECK_ROWS)


def test_the_page_has_every_version() -> None:
    rows = [row for row in table(PAGE) if len(row) == 3]

    assert rows == VERSION_ROWS, VERSION_ROWS
