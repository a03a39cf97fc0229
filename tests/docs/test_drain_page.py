"""docs/operations/drain.md lists the keys that can be changed while the gateway runs."""

import re

import pytest

from pdgate.gateway.config.complaints import known_keys
from pdgate.gateway.config.settings import Settings
from pdgate.gateway.lifecycle.live import CHANGEABLE
from pdgate.gateway.lifecycle.reload import part_of
from tests.docs.pages import DOCS

PAGE = DOCS / "operations" / "drain.md"

pytestmark = pytest.mark.source


def test_the_page_names_each_key_that_can_be_changed() -> None:
    """A section stands for its keys, and so must be changeable as a whole."""
    table = PAGE.read_text(encoding="utf-8").partition("| keys |")[2].partition("\n\n")[0]
    listed = {
        key
        for line in table.splitlines()
        for key in re.findall(r"`([a-z_.]+)`", line.partition("|")[2].partition("|")[0])
    }
    keys = list(known_keys(Settings))
    leaves = [key for key in keys if not any(other.startswith(f"{key}.") for other in keys)]

    changeable = {key for key in leaves if part_of(key, CHANGEABLE)}
    assert changeable == {key for key in leaves if part_of(key, listed)}
