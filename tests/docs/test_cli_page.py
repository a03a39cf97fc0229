"""docs/cli.md has all commands and flags, as they are."""

import re

import pytest

from pdgate.__main__ import COMMANDS
from tests.docs.commands import PAGE, page, rows
from tests.docs.pages import code

pytestmark = pytest.mark.source


def test_the_page_is_what_the_commands_say() -> None:
    """python -m tests.docs.commands writes it anew."""
    assert PAGE.read_text(encoding="utf-8") == page()


@pytest.mark.parametrize("name", COMMANDS)
def test_each_flag_says_what_it_is(name: str) -> None:
    assert [flag for flag, _, _, meaning in rows(name) if not meaning] == []


def test_the_page_names_the_commands_that_have_json() -> None:
    """And tells nothing of it that is not so."""
    (line,) = re.findall(
        r"^Of these commands .*? have `--json`", PAGE.read_text(), re.MULTILINE | re.DOTALL
    )
    told = set(code(line)) - {"--json"}

    assert told == {name for name in COMMANDS if any(f == "`--json`" for f, *_ in rows(name))}
