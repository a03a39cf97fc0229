"""RESULTS.md answers each question with a command that can be typed, a table and a date."""

import re
from pathlib import Path

import pytest

from tests.docs import spelling
from tests.docs.shell import Command

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "benchmarks" / "RESULTS.md").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", TEXT, re.MULTILINE | re.DOTALL))
TYPED = re.compile(
    r"^    (python -m (?:.+\\\n)*.+)|^    bash (\S+)|`((?:python -m|pdgate simulate) [^`]+)`",
    re.MULTILINE,
)
# Its table and that of KV transfer are of one command, which says so.
TOGETHER = "KV transfer behind computing"

pytestmark = pytest.mark.source


@pytest.mark.parametrize("question", SECTIONS)
def test_a_question_has_a_table_that_is_dated_or_simulated(question: str) -> None:
    section = SECTIONS[question]

    assert "\n|" in section
    assert re.search(r"\b20\d\d-\d\d-\d\d\b|[Ss]imulated|simulated time", section)


@pytest.mark.parametrize("question", [one for one in SECTIONS if one != TOGETHER])
def test_a_question_has_a_command_that_can_be_typed(question: str) -> None:
    found = TYPED.findall(SECTIONS[question])

    assert found
    for block, script, within in found:
        if script:
            assert (ROOT / script).exists()
        else:
            text = (block or within).replace("\\\n", " ")
            spelling.check(Command("benchmarks/RESULTS.md", 1, text))


def test_nothing_in_it_is_history() -> None:
    """Older figures are in git."""
    assert re.findall(r"\b(?:an earlier|the morning of|hours? before|older run)\b", TEXT) == []
