"""docs/conformance.md lists the checks, by the sentences that they stand for."""

import pytest

from pdgate.lab.conformance import CHECKS
from tests.docs.pages import DOCS, code, table


@pytest.mark.source
def test_the_page_lists_all_checks() -> None:
    rows = {code(row[0])[0]: row[1] for row in table(DOCS / "conformance.md") if code(row[0])}
    told = {one.id: one.means.removesuffix(".") for one in CHECKS}

    assert list(told) == [name for name in rows if name in told]
    for name, means in told.items():
        assert rows[name] == means[0].lower() + means[1:]
