"""docs/operations/drain-and-reload.md lists the keys that can be changed while the gateway runs."""

import re

import pytest

from pdgate.gateway.config.setting import OnReload
from pdgate.gateway.lifecycle.reload import RULES
from tests.docs.pages import DOCS

PAGE = DOCS / "operations" / "drain-and-reload.md"

pytestmark = pytest.mark.source


def test_the_page_names_each_key_that_can_be_changed() -> None:
    """A section stands for its keys, and so must be changeable as a whole."""
    table = PAGE.read_text(encoding="utf-8").partition("| keys |")[2].partition("\n\n")[0]
    listed = {
        key
        for line in table.splitlines()
        for key in re.findall(r"`([a-z_.]+)`", line.partition("|")[2].partition("|")[0])
    }
    changeable = {key for key, rule in RULES.items() if rule is not OnReload.RESTART}

    assert changeable == {key for key in RULES if {key, key.partition(".")[0]} & listed}
